"""Names to files, and downloads that fail in every way they can."""

import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np
import pytest

from ikno.data.catalog import CATALOG, find_card
from ikno.data.library import data_folder, download, find_data, load_data
from ikno.errors import UserError

CARD = CATALOG["poisson-gauss"]
BODY = np.random.default_rng(0).bytes(2_500_000)
DIGEST = hashlib.sha256(BODY).hexdigest()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, without a data folder in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IKNO_DATA", raising=False)
    return tmp_path


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


def test_the_data_folder_comes_from_the_environment(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder() == Path("data")
    monkeypatch.setenv("IKNO_DATA", "")
    assert data_folder() == Path("data")
    monkeypatch.setenv("IKNO_DATA", str(here / "elsewhere"))
    assert data_folder() == here / "elsewhere"
    expected = touch(here / "elsewhere" / "NS_Gauss.nc")
    touch(here / "data" / "ns-gauss.nc")
    assert find_data("ns-gauss") == (CATALOG["ns-gauss"], expected)
    own = touch(here / "third" / "ns-gauss.nc")
    assert find_data("ns-gauss", here / "third") == (CATALOG["ns-gauss"], own)


@pytest.mark.parametrize("file", ["Wave-C-Sines.nc", "wave_c_sines.nc", "WAVECSINES.NC", "wave c sines.h5"])
def test_a_name_finds_its_file_in_any_spelling(file: str) -> None:
    path = touch(Path("data") / file)
    for name in ("wave-c-sines", "Wave_C_Sines", "wavecsines"):
        assert find_data(name) == (CATALOG["wave-c-sines"], path)


def test_a_name_does_not_take_other_files() -> None:
    for file in ("ns-gauss.txt", "ns-gauss-2.nc", "ns-pwc.nc", "ce-gauss.nc", "ns-gauss.nc.partial"):
        touch(Path("data") / file)
    Path("data/ns-gauss.nc").mkdir()
    with pytest.raises(UserError, match=r"ns-gauss: no file ns-gauss\.nc in data; .*ikno data generate ns-gauss"):
        find_data("ns-gauss")


def test_a_missing_set_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOG, "naca0012", CATALOG["naca0012"].model_copy(update={"generated": False}))
    with pytest.raises(UserError, match=r"naca0012: no file naca0012\.nc in data; it comes from https://huggingface"):
        find_data("NACA0012")


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("NS-Gauss.nc", "ns-gauss"),
        ("sub/ns_gauss.nc", "ns-gauss"),
        ("nsgauss.h5", "ns-gauss"),
        ("NS_SL-test.nc", "ns-sl"),
        ("Poisson C Sines.v2.nc", "poisson-c-sines"),
        ("trainingData_NASA-CRM.h5", "nasa-crm"),
        ("testData_NASA-CRM.h5", "nasa-crm"),
        ("elasticity_resolution-64.nc", "elasticity"),
    ],
)
def test_a_file_is_known_by_its_name(here: Path, file: str, name: str) -> None:
    path = touch(Path(file))
    assert find_data(file) == (CATALOG[name], path)
    assert find_data(str(here / file)) == (CATALOG[name], here / file)


@pytest.mark.parametrize("file", ["mine.nc", "ce-rpui.nc", "ns-slow.nc", "gauss.nc", "my-ns-gauss.nc", "_.nc", "a/b"])
def test_a_file_of_another_name_needs_a_card(file: str) -> None:
    path = touch(Path(file))
    if path.suffix:
        h5py.File(path, "w").close()
    with pytest.raises(UserError, match=r"its name is that of no benchmark; write a card \(\.toml\)"):
        find_data(file)


def test_a_file_may_say_its_benchmark() -> None:
    for said, name in (("nasa-crm", "mine.h5"), ("wave-layer", "mine.nc")):
        with h5py.File(name, "w") as file:
            file.attrs["benchmark"] = said
        assert find_data(name) == (CATALOG[said], Path(name))
    with h5py.File("mine.nc", "w") as file:
        file.attrs["benchmark"] = "nothing"
    with pytest.raises(UserError, match="its name is that of no benchmark"):
        find_data("mine.nc")


@pytest.mark.parametrize("file", ["ns-gauss.nc", "sub/ns-gauss", "/nowhere/ns-gauss.nc", "mine.npz"])
def test_a_missing_file_is_named(file: str) -> None:
    with pytest.raises(UserError, match=f"^{file}: no such file$"):
        find_data(file)


def test_a_folder_named_like_a_benchmark_does_not_hide_its_file() -> None:
    Path("elasticity").mkdir()
    path = touch(Path("data/elasticity.nc"))
    assert find_data("elasticity") == (CATALOG["elasticity"], path)


def test_unknown_names_and_missing_cards() -> None:
    for name, message in (("ns-gaus", "did you mean 'ns-gauss'"), ("mine.toml", "no such card")):
        with pytest.raises(UserError, match=message):
            find_data(name)


def test_a_card_brings_its_own_file(here: Path) -> None:
    Path("sub").mkdir()
    Path("sub/mine.toml").write_text('name = "mine"\nfile = "mine.h5"\nvariables = ["u"]\n')
    card, path = find_data("sub/mine.toml", here / "unused")
    assert (card.name, path) == ("mine", Path("sub/mine.h5"))
    with pytest.raises(UserError, match=r"mine\.h5: no such file"):
        load_data("sub/mine.toml")
    values = np.random.default_rng(0).random((3, 1, 7, 1)).astype(np.float32)
    with h5py.File(path, "w") as file:
        file["u"], file["x"] = values, np.zeros((1, 1, 7, 2), np.float32)
    with load_data("sub/mine.toml") as dataset:
        assert len(dataset) == 3
        np.testing.assert_array_equal(dataset[2].values, values[2])


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


class Answers(http.server.BaseHTTPRequestHandler):
    """Good and bad answers, by path, byte for byte; the connection ends after each."""

    ok = b"HTTP/1.0 200 OK\r\n"
    answers: ClassVar[dict[str, bytes]] = {
        "/good": ok + b"Content-Length: 2500000\r\n\r\n" + BODY,
        "/unknown-length": ok + b"\r\n" + BODY,
        "/moved": b"HTTP/1.0 302 Found\r\nLocation: /good\r\n\r\n",
        "/missing": b"HTTP/1.0 404 Not Found\r\n\r\nnot here",
        "/short": ok + b"Content-Length: 2500001\r\n\r\n" + BODY,
        "/silent": ok + b"Content-Length: 2500000\r\n\r\n",
        "/nonsense": ok + b"Content-Length: many\r\n\r\n" + BODY,
        "/chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\nabc",
        "/garbage": b"this is not HTTP\r\n\r\n",
    }

    def do_GET(self) -> None:
        self.wfile.write(self.answers[self.path])

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["/good", "/moved", "/unknown-length"])
def test_a_download_arrives_whole(here: Path, server: str, path: str) -> None:
    seen: list[tuple[int, int]] = []
    found = download(CARD, here / "new" / "data", server + path, DIGEST, lambda *step: seen.append(step))
    assert found == here / "new" / "data" / "poisson-gauss.nc"
    assert found.read_bytes() == BODY
    assert left(here) == ["poisson-gauss.nc"]
    assert seen[-1] == (len(BODY), 0 if path == "/unknown-length" else len(BODY))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert find_data("poisson-gauss", here / "new" / "data") == (CARD, found)


def test_address_and_digest_of_the_card_are_used(here: Path, server: str) -> None:
    source = here / "source.bin"
    source.write_bytes(BODY)
    card = CARD.model_copy(update={"url": source.as_uri(), "sha256": DIGEST.upper()})
    assert download(card, here / "one").read_bytes() == BODY
    wrong = CARD.model_copy(update={"url": source.as_uri(), "sha256": "0" * 64})
    with pytest.raises(UserError, match="checksum"):
        download(wrong, here / "two")
    assert download(wrong, here / "two", server + "/good", DIGEST).read_bytes() == BODY


def test_the_aircraft_is_stored_where_it_is_looked_for(here: Path, server: str) -> None:
    card = find_card("nasa-crm")
    found = download(card, here, server + "/good")
    assert find_data("nasa-crm", here) == (card, found)


def test_a_wrong_checksum_removes_the_file_and_says_where_to_put_it(here: Path, server: str) -> None:
    with pytest.raises(UserError) as caught:
        download(CARD, here, server + "/good", "ab" * 32)
    message = str(caught.value)
    for part in (DIGEST, "ab" * 32, "by hand", CARD.source, str(here / "poisson-gauss.nc")):
        assert part in message
    assert "\n" not in message
    assert left(here) == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/short", "ended after 2,500,000 of 2,500,001 bytes"),
        ("/silent", "ended after 0 of 2,500,000 bytes"),
        ("/chunked", "IncompleteRead"),
        ("/missing", "Not Found"),
        ("/garbage", "not HTTP"),
        ("/nonsense", "many"),
    ],
)
def test_bad_answers_leave_nothing(here: Path, server: str, path: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        download(CARD, here, server + path)
    assert f"put it at {here / 'poisson-gauss.nc'}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left(here) == []


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/x.nc",
        "http://127.0.0.1:port/x.nc",
        "http://[::1/x.nc",
        "http://",
        "http://127.0.0.1:{port}/a b.nc",
        "file:///no/such/file.nc",
        "file:///",
    ],
)
def test_offline_and_broken_addresses(here: Path, url: str) -> None:
    with pytest.raises(UserError, match=r"cannot be fetched .*by hand from https://doi\.org") as caught:
        download(CARD, here, url.format(port=closed_port()))
    assert str(here / "poisson-gauss.nc") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left(here) == []


@pytest.mark.parametrize("url", ["ftp://host/x.nc", "x.nc", "/etc/hosts", "data:text/plain,x", "javascript:1", "-o"])
def test_odd_addresses_are_refused(here: Path, url: str) -> None:
    with pytest.raises(UserError, match="not an address; it starts with https://"):
        download(CARD, here / "new", url)
    assert list(here.iterdir()) == []


def test_without_an_address_the_message_says_what_to_do(here: Path) -> None:
    for card in CATALOG.values():
        if card.url is None:
            with pytest.raises(UserError, match=f"{card.name}: no direct address is known.*--url") as caught:
                download(card, here / "new")
            assert card.source in str(caught.value)
            assert str(here / "new") in str(caught.value)
    assert list(here.iterdir()) == []


def test_an_existing_file_is_kept(here: Path, server: str) -> None:
    path = here / "poisson-gauss.nc"
    path.write_bytes(b"precious")
    with pytest.raises(UserError, match="exists already; remove it first"):
        download(CARD, here, server + "/good", DIGEST)
    assert path.read_bytes() == b"precious"
    assert left(here) == ["poisson-gauss.nc"]


def test_an_old_partial_file_does_not_end_up_in_the_result(here: Path, server: str) -> None:
    (here / "poisson-gauss.nc.partial").write_bytes(b"old" * len(BODY))
    assert download(CARD, here, server + "/good", DIGEST).read_bytes() == BODY
    assert left(here) == ["poisson-gauss.nc"]


def test_an_interrupted_download_leaves_nothing(here: Path, server: str) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(CARD, here, server + "/good", progress=interrupt)
    assert left(here) == []


def test_a_folder_that_cannot_be_made(here: Path, server: str) -> None:
    touch(here / "taken")
    with pytest.raises(UserError, match="taken: cannot be used as a folder"):
        download(CARD, here / "taken", server + "/good")
    assert left(here) == ["taken"]
