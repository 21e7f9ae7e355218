"""The page at the control port, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from selenium.webdriver.common.keys import Keys

from dualwrite.broker_emulator import Fault, Hold
from dualwrite.broker_emulator.clock import VirtualClock
from dualwrite.broker_emulator.emulator import Emulator
from dualwrite.broker_emulator.pause_points import PausePoint
from tests.emulator.control.conftest import Transaction
from tests.support.browser import Browser, open_browser
from tests.support.conditions import until

SCREENSHOTS = Path(__file__).parents[3] / "build" / "screenshots"
HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def browser(started: Browser, controlled: Emulator) -> Iterator[Browser]:
    started.show()
    started.driver.get(controlled.control_url)
    until(lambda: started.texts("#connection") == ["live"])
    yield started
    controlled.faults.clear()
    assert started.complaints == []


def rows(browser: Browser, section: str) -> list[str]:
    """Return the rows of a section's table, each as one line."""
    return [" ".join(text.split()) for text in browser.texts(f"section[aria-labelledby={section}] tbody tr")]


def shown(browser: Browser, section: str, *texts: str) -> bool:
    """Return whether one row of a section has all of these texts."""
    return any(all(text in row for text in texts) for row in rows(browser, section))


def button(name: str) -> str:
    return f"button[aria-label='{name}']"


def test_a_held_commit_is_seen_and_released_by_its_button(browser: Browser, controlled: Emulator) -> None:
    transaction = Transaction(controlled, "held-commit")
    transaction.send("orders")
    held = controlled.faults.add(Fault(api="EndTxn", action=Hold()))
    with ThreadPoolExecutor(1) as threads:
        commit = threads.submit(transaction.commit)
        held.wait_held()
        until(lambda: shown(browser, "faults", "Hold", "api=EndTxn", "1 held", "used up"))
        assert shown(browser, "transactions", "held-commit", "Ongoing", "orders 0")
        assert shown(browser, "partitions", "orders-0", "1 offset", "held-commit from offset")
        browser.find(button(f"Release fault {held.fault_id}")).click()
        commit.result(60)
    until(lambda: rows(browser, "faults") == [])
    until(lambda: not shown(browser, "transactions", "held-commit"))
    until(lambda: shown(browser, "partitions", "orders-0", "nothing"))
    until(lambda: browser.texts("[role=status]") == [f"Fault {held.fault_id} released"])
    browser.find("#show-ended").click()
    assert shown(browser, "transactions", "held-commit", "CompleteCommit")
    browser.find("#show-ended").click()
    transaction.producer.close()


def test_a_pause_point_is_released_by_the_keyboard_alone(browser: Browser, controlled: Emulator) -> None:
    transaction = Transaction(controlled, "paused", two_phase_commit=True)
    transaction.send("orders", 1)
    held = controlled.hold(PausePoint.BEFORE_MARKER)
    transaction.commit()
    held.wait_reached()
    until(lambda: shown(browser, "holds", "before-marker", "1 held"))
    assert shown(browser, "transactions", "paused", "PrepareCommit", "2PC", "never", "0 of 1 marker written")
    browser.press("2")
    assert browser.focused == "holds"
    browser.press(Keys.TAB)
    assert browser.focused.startswith("Release hold")
    outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    browser.press(Keys.ENTER)
    until(lambda: rows(browser, "holds") == [])
    until(lambda: browser.focused == "holds")  # and not lost with the row
    until(lambda: not shown(browser, "transactions", "paused"))
    transaction.producer.close()


def test_hostile_names_are_shown_as_text(browser: Browser, controlled: Emulator) -> None:
    transaction = Transaction(controlled, HOSTILE)
    transaction.send("orders")
    controlled.faults.add(Fault(api="EndTxn", transactional_id=HOSTILE, client_id=HOSTILE, action=Hold()))
    settings = {"bootstrap.servers": controlled.bootstrap_servers, "group.id": HOSTILE, "client.id": HOSTILE}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    while not consumer.assignment():
        consumer.poll(0.05)
    for section in ("transactions", "partitions", "groups", "faults"):
        until(lambda section=section: shown(browser, section, HOSTILE))  # type: ignore[misc]
    assert shown(browser, "groups", "Stable", "orders 0-1")
    assert browser.run("return document.title") == "Broker emulator"
    assert browser.run("return document.querySelectorAll('main img, main script, main b').length") == 0
    link = browser.find("section[aria-labelledby=transactions] tbody a")
    assert browser.run("return fetch(arguments[0].href).then((answer) => answer.status)", link) == 200
    consumer.close()
    controlled.faults.clear()
    transaction.commit()
    transaction.producer.close()


def go_to(browser: Browser, controlled: Emulator, page: str) -> None:
    browser.driver.get("about:blank")
    browser.driver.get(f"{controlled.control_url}/#{page}")
    until(lambda: browser.texts("#connection") == ["live"] and browser.texts("#detail-title") != [])


def facts(browser: Browser) -> dict[str, str]:
    found: dict[str, str] = browser.run(
        "return Object.fromEntries([...document.querySelectorAll('.facts > div')]"
        ".map((each) => [...each.children].map((part) => part.innerText)))"
    )
    return found


def test_each_thing_has_a_page_and_the_back_button_works(browser: Browser, controlled: Emulator) -> None:
    controlled.reset()
    name = "with / and ? and ü"
    transaction = Transaction(controlled, name, two_phase_commit=True)
    transaction.send("orders")
    until(lambda: shown(browser, "transactions", name))
    browser.find("section[aria-labelledby=transactions] tbody a").click()
    until(lambda: browser.texts("#detail-title") == [f"Transaction {name}"])
    until(lambda: facts(browser).get("Timeout") == "never")
    assert browser.run("return document.title") == f"Transaction {name} · Broker emulator"
    assert "Ongoing" in facts(browser)["State"]
    assert "2PC: no timeout" in facts(browser)["State"]
    assert browser.focused == "detail-title"
    assert browser.texts("#overview section") == []
    browser.find("#detail a[href='#/topics/orders']").click()
    until(lambda: browser.texts("#detail-title") == ["Topic orders"])
    until(lambda: shown(browser, "detail-partitions", "orders-0", "1 offset", name))
    browser.driver.back()
    until(lambda: browser.texts("#detail-title") == [f"Transaction {name}"])
    browser.driver.back()
    until(lambda: browser.texts("#detail-title") == [] and shown(browser, "transactions", name))
    assert browser.run("return document.title") == "Broker emulator"
    go_to(browser, controlled, "/nodes/1")
    until(lambda: shown(browser, "detail-nodes", "1", "running"))
    assert shown(browser, "detail-partitions", "orders-1")
    browser.find("#back a").click()
    until(lambda: shown(browser, "nodes", "1", "running"))
    transaction.commit()
    transaction.producer.close()


def test_records_of_both_isolations_with_their_markers(browser: Browser, controlled: Emulator) -> None:
    controlled.reset()
    ended = [Transaction(controlled, "committed"), Transaction(controlled, "aborted"), Transaction(controlled, "open")]
    for transaction in ended:
        transaction.producer.send("orders", value=transaction.transactional_id.encode(), key=b"\xff", partition=1)
        transaction.producer.flush()
    ended[0].commit()
    ended[1].producer.abort_transaction()
    first = controlled.records("orders", 1, read_committed=False)[0].offset
    go_to(browser, controlled, "/topics/orders")
    until(lambda: len(rows(browser, "detail-records")) == 1)
    assert shown(browser, "detail-records", f"1 : {first}", "1 byte", "ff", "committed")
    select(browser, "isolation", "read_uncommitted")
    until(lambda: len(rows(browser, "detail-records")) == 5)
    for texts in (
        ("committed", "committed"),
        ("aborted", "aborted"),
        ("open", "open"),
        ("commit marker",),
        ("abort marker",),
    ):
        assert shown(browser, "detail-records", *texts)
    browser.find("[name=markers]").click()
    until(lambda: len(rows(browser, "detail-records")) == 3)
    select(browser, "partition", "0")
    until(lambda: rows(browser, "detail-records") == [])
    select(browser, "partition", "1")
    offset = browser.find("[name=offset]")
    offset.send_keys(str(first + 2), Keys.TAB)
    until(lambda: [row.split()[:3] for row in rows(browser, "detail-records")] == [["1", ":", str(first + 2)]])
    browser.driver.refresh()  # the URL holds the selection
    until(lambda: len(rows(browser, "detail-records")) == 1 and shown(browser, "detail-records", "open"))
    ended[2].commit()
    until(lambda: shown(browser, "detail-records", "committed"))  # without a word
    for transaction in ended:
        transaction.producer.close()


def select(browser: Browser, name: str, value: str) -> None:
    script = "const it = document.querySelector(`[name=${arguments[0]}]`); it.value = arguments[1];"
    browser.run(f"{script} it.dispatchEvent(new Event('change', {{bubbles: true}}))", name, value)


def test_a_fault_is_added_and_a_pause_point_held_and_released_by_forms(browser: Browser, controlled: Emulator) -> None:
    browser.find("section[aria-labelledby=faults] summary").click()
    until(lambda: browser.texts("[name=api]") != [])
    api = browser.find("[name=api]")
    select(browser, "action", "Error")
    api.send_keys("EndTxn")
    browser.find(".adding [name=code]").send_keys("51")
    browser.find("section[aria-labelledby=faults] details details summary").click()
    browser.find(".adding [name=transactional_id]").send_keys("only-this")
    api.send_keys(Keys.ENTER)
    until(lambda: shown(browser, "faults", "Error", "code=51", "api=EndTxn", "transactional_id=only-this", "count=1"))
    (fault,) = controlled.faults.live
    assert (fault.fault.api, fault.fault.transactional_id) == ("EndTxn", "only-this")
    api.clear()
    api.send_keys("EndTx", Keys.ENTER)
    until(lambda: any("did you mean 'EndTxn'" in text for text in browser.texts("[role=alert]")))
    assert any("400" in complaint for complaint in browser.complaints)
    browser.find("section[aria-labelledby=faults] td button").click()
    until(lambda: rows(browser, "faults") == [])

    browser.find("section[aria-labelledby=holds] summary").click()
    until(lambda: browser.texts("section[aria-labelledby=holds] select") != [])
    browser.find("section[aria-labelledby=holds] .adding button").click()
    until(lambda: shown(browser, "holds", "before-marker", "everything"))
    browser.find("section[aria-labelledby=holds] td button").click()
    until(lambda: rows(browser, "holds") == [])

    transaction = Transaction(controlled, "held-on-its-page")
    transaction.send("orders")
    go_to(browser, controlled, "/transactions/held-on-its-page")
    browser.find("article summary").click()
    until(lambda: browser.texts("article select") != [])
    browser.find("article .adding button").click()
    until(lambda: shown(browser, "detail-holds", "before-marker", "transactional_id=held-on-its-page"))
    transaction.commit()
    until(lambda: "PrepareCommit" in facts(browser)["State"])
    assert shown(browser, "detail-marked", "orders-0", "not written")
    browser.find("article td button").click()
    until(lambda: "CompleteCommit" in facts(browser)["State"])
    transaction.producer.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")])
def test_every_page_is_readable(browser: Browser, controlled: Emulator, width: int, scheme: str) -> None:
    """Nothing is wider than the screen, and the contrast of every text is at least 4.5 (WCAG 2.2, 1.4.3)."""
    transaction = Transaction(controlled, "a-transactional-id-that-is-rather-long-" * 3, two_phase_commit=True)
    controlled.faults.add(Fault(api="Fetch", topic="orders"))
    hold = controlled.hold(PausePoint.BEFORE_LOAD)
    transaction.producer.send("orders", value=b"a value without any spaces ".replace(b" ", b"-") * 20, partition=0)
    transaction.producer.flush()
    browser.show(width=width, scheme=scheme)
    for page, number in (("overview", 0), ("topics", 1), ("transactions", 2), ("nodes", 3)):
        names = {
            "topics": "orders?isolation=read_uncommitted",
            "transactions": transaction.transactional_id,
            "nodes": "0",
        }
        if page == "overview":
            browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
            until(lambda: len(browser.texts(".adding select")) >= 2 and rows(browser, "holds") != [])
        else:
            go_to(browser, controlled, f"/{page}/{names[page]}")
            until(lambda: browser.texts("article tbody tr") != [])
        assert browser.run(TOO_WIDE) == [], page
        assert browser.run("return document.documentElement.scrollWidth") <= width, page
        assert browser.run(CONTRASTS) == [], page
        assert browser.run("return [...document.querySelectorAll('th')].filter((each) => !each.scope).length") == 0
        browser.screenshot(SCREENSHOTS / f"{number}-{page}-{width}-{scheme}.png")
        browser.show(width=width, scheme=scheme)
    hold.release()
    transaction.commit()
    transaction.producer.close()


TOO_WIDE = """
return [...document.querySelectorAll('body *')].filter((each) => !each.closest('thead, .skip')
  && each.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map((each) => each.outerHTML);
"""
CONTRASTS = """
function channels(color) { return (color.match(/[\\d.]+/g) || []).map(Number); }
function luminance([r, g, b]) {
  const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => (v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4));
  return .2126 * x + .7152 * y + .0722 * z;
}
function background(element) {
  for (let each = element; each; each = each.parentElement) {
    const color = channels(getComputedStyle(each).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
}
const low = [];
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest('.visually-hidden, .skip, noscript')) continue;
  const [one, other] = [luminance(channels(getComputedStyle(element).color)), luminance(background(element))];
  const contrast = (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
  if (contrast < 4.5) low.push(`${element.textContent.trim()}: ${contrast.toFixed(2)}`);
}
return low;
"""


def test_a_stopped_emulator_is_reported(started: Browser) -> None:
    started.show()
    with Emulator(clock=VirtualClock(), control="127.0.0.1:0") as emulator:
        started.driver.get(emulator.control_url)
        until(lambda: started.texts("#connection") == ["live"])
    until(lambda: "does not respond" in started.texts("#connection")[0])
    assert shown(started, "nodes", "running")  # the last known state stays
    started.complaints  # noqa: B018  # of connections that are refused
