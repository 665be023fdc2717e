"""The checks; each module holds those of one subject. ``agents.doctor.table`` lists them."""
