"""The Attention tab in a real browser does what its labels say."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from tests.browser import Page, tensorboard
from tests.map_runs import Seen, record, write_all
from tests.references import tiny_vit
from tests.view import PREFIX, View, received, token
from vit.inspection import map_record

ENTRY = (
    "data/plugin_entry.html?name=attention#attention"  # the tab's page, alone as TensorBoard serves it for its frame
)
FRAME = "[...document.querySelectorAll('iframe')].find(f => f.src.includes('name=attention')).contentWindow"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[int, Seen]:
    return write_all(folder)


@pytest.fixture(scope="module")
def host(folder: Path, seen: dict[int, Seen]) -> Iterator[str]:
    with tensorboard(folder) as address:
        yield address


@pytest.fixture
def tab(page: Page, host: str, seen: dict[int, Seen]) -> Iterator[View]:
    """Afterwards the console must have stayed silent, and no other host been asked."""
    yield View(page, host + ENTRY, seen, name="p.attention.")
    assert not page.errors
    assert page.hosts == {host.split("/")[2]}


def test_in_tensorboard_the_tab_shows_the_runs(tab: View, page: Page, host: str) -> None:
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.open(f"{host}#attention&p.attention.run=a&p.attention.head=3")
    page.wait(f"{FRAME}.document.querySelector('.caption').textContent.includes('Layer 2, head 3: the readout of cat')")
    options = page.run(f"[...{FRAME}.document.querySelector('select').options].map(o => o.textContent)")
    assert {"a", "b", "none (no maps)"} <= set(options)
    place = page.run(f"""(f => {{
        const outer = f.frameElement.getBoundingClientRect();
        const inner = f.document.querySelector('.frame').getBoundingClientRect();
        return [outer.left + inner.left + inner.width * 0.9, outer.top + inner.top + inner.height * 0.1];
    }})({FRAME})""")
    page.mouse(*place, click=True)
    page.wait(f"{FRAME}.document.querySelector('.caption').textContent.includes('patch row 1, column 4 of cat')")
    assert page.run("location.hash").startswith("#attention&p.attention.image=1&p.attention.run=a&")
    assert "p.attention.patch=1%2C4" in page.run("location.hash")
    ground = f"{FRAME}.getComputedStyle({FRAME}.document.body).backgroundColor"
    assert page.run(ground) == "rgb(27, 28, 31)"
    page.run("document.body.classList.remove('dark-mode')")  # as TensorBoard's own switch does
    page.wait(f"{ground} === 'rgb(255, 255, 255)'")
    page.send("Emulation.setEmulatedMedia", features=[])


def test_hovering_shows_where_a_patch_attends_and_leaving_the_readout(tab: View) -> None:
    tab.open("run=a", "step=20", "layer=1", "head=2")
    tab.assert_shows("Layer 1, head 2: the readout of cat", received(tab, 20, 1, 2, None))
    for row, column, frame in ((2, 3, 0), (4, 1, 1)):
        tab.page.mouse(*tab.spot(row, column, frame))
        said = f"Layer 1, head 2: patch row {row}, column {column} of cat"
        tab.assert_shows(said, received(tab, 20, 1, 2, token(row, column)))
    tab.page.mouse(1, 1)
    tab.caption("the readout of cat")
    assert not any(one.startswith("patch") for one in tab.state())


@pytest.mark.parametrize("head", ["1", "4", "mean", "rollout", "relevance"])
def test_heads_and_what_joins_them(tab: View, head: str) -> None:
    tab.open("run=a", "step=5", "layer=1", "patch=3,2")
    tab.choose("Head", head)
    layered = "Layer 1, " + ("mean of heads" if head == "mean" else f"head {head}")
    said = head.capitalize() if head in ("rollout", "relevance") else layered
    tab.assert_shows(f"{said}: patch row 3, column 2 of cat", received(tab, 5, 1, head, token(3, 2)))
    tab.focus(".stage")
    tab.page.press("Escape")
    tab.assert_shows(f"{said}: the readout of cat", received(tab, 5, 1, head, None))
    assert tab.page.run("document.querySelectorAll('select')[1].disabled") == (head in ("rollout", "relevance"))


def test_arrow_keys_move_from_patch_to_patch_and_beside_the_picture(tab: View) -> None:
    tab.open("run=a", "step=20", "layer=2", "head=1")
    tab.focus(".stage")
    for keys, said, at in (
        (["ArrowUp"], "patch row 3, column 3", token(3, 3)),
        (["ArrowUp", "ArrowLeft"], "patch row 2, column 2", token(2, 2)),
        (["ArrowDown"] * 5 + ["ArrowRight"] * 5, "patch row 4, column 4", token(4, 4)),
        (["ArrowUp"] * 3 + ["ArrowLeft"] * 4, "class token", 0),
        (["ArrowDown"], "register 1", 1),
        (["ArrowRight"], "patch row 2, column 1", token(2, 1)),
    ):
        tab.page.press(*keys)
        tab.assert_shows(f"Layer 2, head 1: {said} of cat", received(tab, 20, 2, 1, at))
    assert tab.page.run("document.querySelector('.caption').ariaLive") == "polite"


def test_the_slider_goes_through_the_steps(tab: View) -> None:
    tab.open("run=a", "layer=2", "head=4")
    tab.assert_shows("the readout of cat", received(tab, 20, 2, 4, None))  # the newest
    tab.focus("input[type=range]")
    for step in (5, 0):
        tab.page.press("ArrowLeft")
        tab.page.wait(f"document.querySelector('strong').textContent === '{step}'")
        tab.assert_shows("the readout of cat", received(tab, step, 2, 4, None))
        assert f"step={step}" in tab.state()


def test_two_panes_compare_steps_heads_and_runs(tab: View) -> None:
    tab.open("run=a", "layer=2", "head=1")
    tab.click(".choices input")
    tab.assert_shows("the readout of cat", received(tab, 0, 2, 1, None), pane=1)  # the first step beside the last
    tab.page.mouse(*tab.spot(1, 2))
    for pane, step in enumerate((20, 0)):
        tab.assert_shows("patch row 1, column 2 of cat", received(tab, step, 2, 1, token(1, 2)), pane)
    tab.choose("Head", "3", pane=1)
    tab.assert_shows("Layer 2, head 3: patch row 1, column 2 of cat", received(tab, 0, 2, 3, token(1, 2)), pane=1)
    tab.choose("Run", "b", pane=1)  # 8 × 8 patches: the one in the same place
    tab.caption("Layer 2, head 2: patch row 2, column 4 of ウサギ", pane=1)


def test_a_link_restores_what_was_seen(tab: View) -> None:
    tab.open("run=a", "step=0", "layer=1", "head=4", "image=2", "compare=1", "run2=b", "head2=rollout", "patch=2,4")
    before = [tab.caption("patch row 2, column 4 of <b>dog</b>"), tab.caption("Rollout: patch", pane=1)]
    tab.choose("Head", "2")
    before[0] = tab.caption("Layer 1, head 2: patch row 2, column 4")
    link = tab.page.run("location.href")
    tab.open()
    tab.page.open(link)
    assert [tab.caption("Layer 1, head 2: patch row 2"), tab.caption("Rollout: patch", pane=1)] == before
    tab.page.run("void (location.hash = location.hash.replace('head=2', 'head=3'))")  # pasted into the open page
    tab.caption("Layer 1, head 3: patch row 2")


def test_all_layers_and_heads_at_once_open_at_a_click(tab: View) -> None:
    tab.open("run=a", "layer=1", "head=1")
    labels = tab.page.wait(
        "(b => b.length && b[0].ariaLabel && b.map(x => x.ariaLabel))([...document.querySelectorAll('.cells button')])"
    )
    heads = ["head 1", "head 2", "head 3", "head 4", "mean of heads"]
    assert [label.rpartition(",")[0] for label in labels] == [f"layer {n}, {head}" for n in (1, 2) for head in heads]
    for label, layer, head in ((labels[2], 1, 3), (labels[9], 2, "mean")):
        highest = float(received(tab, 20, layer, head, None)[PREFIX:].max())
        assert float(label.split()[-1]) == pytest.approx(highest, rel=0.06)
    tab.click(".cells button:nth-of-type(8)")
    tab.assert_shows("Layer 2, head 3: the readout of cat", received(tab, 20, 2, 3, None))
    tab.focus(".cells button[aria-pressed=true]")
    tab.page.press("ArrowUp", "ArrowRight", "Enter")
    tab.page.run("document.activeElement.click()")
    tab.caption("Layer 1, head 4: ")
    tab.click(".choices label:nth-of-type(2) input")
    tab.page.wait("document.querySelector('.cells').hidden")


def test_it_is_said_what_is_not_there(tab: View) -> None:
    tab.open("run=none")
    tab.message("The run none has no attention maps")
    controls = "[...document.querySelector('.controls').querySelectorAll('select, input')].map(one => one.disabled)"
    assert tab.page.run(controls) == [False, True, True, True]
    tab.choose("Run", "b")
    tab.caption("of ウサギ attends most")
    assert tab.page.run(controls) == [False, False, False, True]  # it has one step
    tab.open("run=b", "image=3", "compare=1", "run2=a")
    tab.message("The run a holds maps of 2 images only", pane=1)
    tab.open("run=gone")
    tab.message("There is no run gone here")
    tab.open("run=a", "layer=99", "head=99", "step=9999", "patch=99,99", "prefix=x")
    tab.caption("Layer 2, head 4: patch row 4, column 4")


def test_class_names_are_text(tab: View) -> None:
    tab.open("run=a", "image=2")
    tab.caption("the readout of <b>dog</b>")
    assert tab.page.run("[...document.querySelectorAll('b')].every(b => b.closest('.prefix'))")
    assert tab.page.run("[...document.querySelectorAll('.images label')].map(l => l.title)") == ["cat", "<b>dog</b>"]


def test_images_are_chosen_with_the_keyboard_too(tab: View) -> None:
    tab.open("run=a")
    tab.page.wait("document.querySelectorAll('.images input').length === 2")
    tab.focus(".images input:checked")
    tab.page.press("ArrowRight")
    tab.caption("of <b>dog</b>")
    assert "image=2" in tab.state()


@pytest.fixture
def hurried(page: Page) -> Iterator[None]:
    """What a page does every five seconds it does four times a second."""
    code = "const every = setInterval; window.setInterval = (call, time) => every(call, time / 20);"
    script = page.send("Page.addScriptToEvaluateOnNewDocument", source=code)
    yield
    page.send("Page.removeScriptToEvaluateOnNewDocument", **script)


@pytest.mark.usefixtures("hurried")
def test_a_run_that_is_being_written_grows_on_the_page(tab: View, folder: Path, host: str) -> None:
    tab.open("run=a")  # for requests must come from this host
    with SummaryWriter(folder / "growing") as writer:
        packed = record(tiny_vit(), ["cat"])[2]
        map_record.write(writer, packed, 0)
        writer.flush()
        tab.page.wait(f"fetch('{host}data/plugin/attention/runs').then(a => a.text()).then(t => t.includes('growing'))")
        tab.open("run=growing")
        tab.page.wait("document.querySelector('strong').textContent === '0'")
        map_record.write(writer, packed, 1500)
        writer.flush()
        tab.page.wait("document.querySelector('strong').textContent === '1,500'")


def test_a_network_without_classes_and_gradients_has_neither_found_nor_relevance(tab: View, folder: Path) -> None:
    seen, _, _ = record(vit := tiny_vit(), ["cat"])
    nothing, pixels = torch.zeros(1, 0), torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    facts: dict = {"step": 0, "grid": vit.grid, "titles": ["cat"], "classes": ()}
    with SummaryWriter(folder / "plain") as writer:
        map_record.write(writer, map_record.pack(seen._replace(logits=nothing), None, pixels, **facts), 0)
    tab.page.open(tab.address)
    tab.page.wait("fetch('runs').then(a => a.text()).then(t => t.includes('plain'))")
    tab.open("run=plain", "head=relevance")
    tab.caption("Layer 2, mean of heads: the readout of cat")
    options = tab.page.run("[...document.querySelectorAll('select')[2].options].map(o => o.value).join()")
    assert options == "mean,rollout,1,2,3,4"
    assert tab.page.run("document.querySelector('.found').hidden")


def test_every_control_has_a_name(tab: View) -> None:
    tab.open("run=a", "compare=1", "run2=b")
    tab.caption("readout", pane=1)
    tab.page.wait("document.querySelectorAll('.images input').length === 2")
    nodes = tab.page.send("Accessibility.getFullAXTree")["nodes"]
    for node in nodes:
        if node.get("role", {}).get("value") in ("button", "combobox", "slider", "radio", "checkbox", "application"):
            assert node["name"]["value"].strip(), node
    assert [node.get("role", {}).get("value") for node in nodes].count("slider") == 2
