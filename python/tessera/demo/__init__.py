"""`tessera demo`: a real language model reads a long real text, with dense and with block-sparse attention.

model.py    loads the model
indexers.py the indexers that were trained for it
text.py     what is read, and the two passages that are read a second time
quality.py  losses of the reading, in chunks
readers.py  the kinds of attention that read, and the clock and the memory gauge around one reading
memory.py   the peak of memory
session.py  the order of the readings, repeated while there is time
table.py    the table on the terminal, and the lines of JSON
report.py   the report, with the figures of figures.py
"""

BLOCK = 64  # tokens per KV block, and queries that share a list
