"""Settings of the whole suite."""

import torch

# The tensors of the tests are small: a second thread costs more than it brings, and one gives the same bits anywhere.
torch.set_num_threads(1)
