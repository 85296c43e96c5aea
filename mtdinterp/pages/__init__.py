"""Documents from data: a page that stands alone, Markdown with pictures, or the output of a
notebook's cell."""
