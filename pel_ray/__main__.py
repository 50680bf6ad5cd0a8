"""`python -m pel_ray` is `pel-ray`."""

from pel_ray.cli import main

main()
