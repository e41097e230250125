"""What engines serve, asked of them: for `roundhouse init`, and for `roundhouse serve` without a configuration file.

`ask` sends the requests, `models` reads the answers, `plan` gives the models and engines their names, and
`configuration_text` writes them as TOML. So both commands understand the same engines in the same way.
"""
