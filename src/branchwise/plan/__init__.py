"""Planning past this machine: what trees would give on other hardware, at other loads, without running there."""
