"""Mistakes that a ledger can make when it is read in pages, and the rules that notice.

A wrong method is given the right one first, then its arguments.
"""

from msgspec.structs import replace

from oncebridge.errors import ConfigurationError
from oncebridge.ledgers.protocol import Found, LetterGroups


def page_with(change):
    """Return a page with its entries changed."""

    def letter_page(right, *args, **asked):
        page = right(*args, **asked)
        return replace(page, entries=change(page.entries))

    return letter_page


def query_without(**fields):
    """Turn pages as if a filter had not been given."""
    return lambda right, self, query, **asked: right(self, replace(query, **fields), **asked)


def skip_one(right, self, query, *, after=None, limit=50):
    """Leave a letter out between two pages."""
    page = right(self, query, after=after, limit=limit)
    if page.next is None or limit == 1:
        return page
    return replace(page, next=right(self, query, after=page.next, limit=1).next)


def by_time_alone(right, self, query, *, after=None, limit=50):
    """Go on behind everything that died at the same time as the last one."""
    return right(self, query, after=after and f"{after.split('.')[0]}..", limit=limit)


def by_its_letter(right, self, query, *, after=None, limit=50):
    """Go on behind the last letter, if it is still there."""
    if after and not any(after.split(".")[1] == key.hex() for key, _ in self.letters):
        return right(self, query, limit=limit)
    return right(self, query, after=after, limit=limit)


def take_any_text(right, self, query, *, after=None, limit=50):
    """Begin anew where a text is none that a page gave."""
    try:
        return right(self, query, after=after, limit=limit)
    except ConfigurationError:
        return right(self, query, limit=limit)


def give_up_early(right, self, query, *, after=None, limit=50):
    """End with the first page that is short."""
    page = right(self, replace(query, handler=None), after=after, limit=limit)
    fitting = [entry for entry in page.entries if query.handler in (None, entry.handler)]
    return replace(page, entries=fitting, next=page.next if fitting else None)


def dead_alone(right, self, query, **asked):
    """Leave out what is being redriven."""
    page = right(self, query, **asked)
    return replace(page, entries=[entry for entry in page.entries if entry.status == "dead"])


def groups_with(change):
    """Return groups that are changed."""
    return lambda right, self: change(right(self))


def found_with(change):
    """Return what is found about a subject, changed."""
    return lambda right, self, subject, *, seconds: change(right(self, subject, seconds=seconds))


def remembered(right, self, subject, *, seconds):
    """Show what was found before."""
    kept = self.__dict__.setdefault("found", {})
    return kept.setdefault(subject, right(self, subject, seconds=seconds))


def forget_letters(right, self, *, older_than_us):
    """Forget letters, too."""
    forgotten = right(self, older_than_us=older_than_us)
    for at in list(self.letters):
        del self.letters[at], self.records[at]
    return forgotten


def scan_all_handlers(right, self, query):
    """Scan for every handler."""
    return right(self, replace(query, handler=None))


PAGE_MISTAKES = [
    ("the oldest first", "letter_page", page_with(lambda entries: entries[::-1]), "letters_come_in_pages"),
    ("one left out", "letter_page", skip_one, "letters_come_in_pages letters_of_one_moment"),
    ("behind a time", "letter_page", by_time_alone, "letters_of_one_moment"),
    ("behind a letter", "letter_page", by_its_letter, "behind_a_letter_that_is_gone"),
    ("any text", "letter_page", take_any_text, "a_text_that_no_page_gave"),
    (
        "content on a page",
        "letter_page",
        page_with(lambda entries: [replace(one, raw=b"") for one in entries]),
        "content",
    ),
    ("any topic", "letter_page", query_without(topic=None), "filters_narrow"),
    ("any reason", "letter_page", query_without(reason=None), "filters_narrow"),
    ("any handler", "letter_page", query_without(handler=None), "filters_narrow a_rare_letter"),
    ("at any time", "letter_page", query_without(since_us=None), "filters_narrow"),
    ("until any time", "letter_page", query_without(until_us=None), "filters_narrow"),
    ("a short page is the last", "letter_page", give_up_early, "a_rare_letter_is_found"),
    ("nothing under way", "letter_page", dead_alone, "pages_hold_letters_as_long"),
    ("scans of all handlers", "scan", scan_all_handlers, "narrowed_to_a_handler"),
    (
        "the rarest first",
        "letter_groups",
        groups_with(lambda all_: replace(all_, groups=all_.groups[::-1])),
        "by_group",
    ),
    (
        "one handler's groups",
        "letter_groups",
        groups_with(lambda all_: replace(all_, groups=[replace(one, handler="") for one in all_.groups])),
        "counted_by_group",
    ),
    (
        "a letter is always counted",
        "letter_groups",
        groups_with(lambda all_: LetterGroups(all_.groups, max(1, all_.total), all_.complete)),
        "a_letter_is_counted_once",
    ),
    (
        "the total of what is shown",
        "letter_groups",
        groups_with(lambda all_: replace(all_, total=sum(one.number for one in all_.groups))),
        "many_groups_are_cut_off",
    ),
    ("letters forgotten", "purge", forget_letters, "forgetting_leaves_pages"),
    ("no newest state", "about", found_with(lambda found: replace(found, newest=[])), "a_subject_is_found"),
    (
        "events that are over",
        "about",
        found_with(lambda found: Found([one for one in found.entries if one.status == "dead"], found.newest, True)),
        "a_subject_is_found",
    ),
    ("as it was", "about", remembered, "a_subject_shows_what_a_scan_does"),
    ("all told", "about", found_with(lambda found: replace(found, complete=True)), "what_is_left_out_about_a_subject"),
]
