"""All that needs a GPU, checked and measured in under eight minutes: `make gpu`.

`programs.py` holds what runs plain and recorded, `checks.py` and `costs.py` compare the two.
"""
