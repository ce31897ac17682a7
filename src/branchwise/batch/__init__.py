"""Files of requests, answered row by row, here or on a cluster: each row once, however often the run is killed."""
