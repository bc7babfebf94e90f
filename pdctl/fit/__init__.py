"""Will it fit? Weights, KV cache and transfers out of a model's config.json. Pure."""
