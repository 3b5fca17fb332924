import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Everything here is small: threads would only wait for each other, for seconds on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
