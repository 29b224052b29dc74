"""Readers of data files: each function reads one format and returns a ``RowSource`` of records.

Iterating over a ``RowSource`` (``for row in source``) reads the files and keeps nothing in memory; ``source.index()``
reads them once and returns the rows by number. Files may be compressed (.gz); several files (a list, a folder, a glob
pattern) are read one after the other, sorted by name. Text is UTF-8, strictly; a byte order mark is dropped and
``\\r\\n`` is a line end like ``\\n``.

A bad row stops the reading with an error that names its file and line; ``on_bad_row="skip"`` leaves it out and counts
it in ``source.stats``.
"""

from glassformer.data.readers.base import Indexed as Indexed
from glassformer.data.readers.base import RowSource as RowSource
from glassformer.data.readers.base import RowStats as RowStats
from glassformer.data.readers.conll import read_conll as read_conll
from glassformer.data.readers.datasets import load_folder as load_folder
from glassformer.data.readers.datasets import read_dataset as read_dataset
from glassformer.data.readers.delimited import read_columns as read_columns
from glassformer.data.readers.json_files import read_jsonl as read_jsonl
from glassformer.data.readers.json_files import read_squad as read_squad
from glassformer.data.readers.text import read_parallel as read_parallel
from glassformer.data.readers.text import read_text as read_text
from glassformer.data.records import AsLabelled as AsLabelled
from glassformer.data.records import AsPair as AsPair
from glassformer.data.records import AsQuestion as AsQuestion
from glassformer.data.records import AsTagged as AsTagged
from glassformer.data.records import AsText as AsText
from glassformer.data.records import BadRowError as BadRowError
from glassformer.data.records import SourceError as SourceError
