"""The experiments that come with equipoise, as YAML files; `equipoise recipes` lists them."""
