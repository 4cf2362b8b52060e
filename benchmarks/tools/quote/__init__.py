"""Numbers in the documents come from the JSON files beside them, and from nowhere else.

``python -m benchmarks.tools.quote`` fills every marked place of README.md and docs/*.md, and a test fails
when a document and its JSON part:

- ``<!-- quote: NAME -->`` … ``<!-- end -->`` with the table of docs/evidence/NAME.json,
  ``<!-- quote: NAME PART -->`` with another table of the same file (:data:`.tables.PARTS`);
- ``<!-- number: NAME PATH SPEC -->`` … ``<!-- end -->``, within a line, with a single number
  (:mod:`.numbers`);
- ``<!-- source: NAME … -->`` … ``<!-- end -->``, within a line, with command, machine and date of files;
- ``<!-- verdicts -->`` … ``<!-- end -->`` with what of the paper holds (:mod:`benchmarks.paper.verdicts`).

It also draws what is drawn from the evidence alone.
"""

from __future__ import annotations

from benchmarks.tools.quote.pages import fill, pages

__all__ = ["fill", "pages"]
