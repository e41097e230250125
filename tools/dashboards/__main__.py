"""Writes the files under deploy/ that are generated from this description."""

from tools.dashboards.generated_files import write

if __name__ == "__main__":
    for changed_file in write():
        print(changed_file)
