#!/usr/bin/env bash
# Records COMMAND and checks the run: what the action does, for any CI system.
#
#   COMMAND="torchrun --nproc-per-node 2 train.py" BASELINE=main.lanes bash check.sh
#
# Leaves in OUTPUT: run (the folder), run.lanes (to keep as the next baseline, and for `lanescope
# view`), junit.xml, report.md. Exit status: that of COMMAND if it fails, then that of the checks.
set -euo pipefail
output=${OUTPUT:-lanescope}
mkdir -p "$output"
rm -rf "$output/run" "$output/run.lanes"

lanescope record --quiet --level "${LEVEL:-access}" -o "$output/run" -- bash -c "$COMMAND"
lanescope pack "$output/run" -o "$output/run.lanes"

against=()
if [[ -n ${BASELINE:-} ]]; then
    if [[ -e $BASELINE ]]; then
        against=(--baseline "$BASELINE" --new)
    else
        echo "lanescope: there is no $BASELINE yet, so every finding counts as new" >&2
    fi
fi
status=0
lanescope check "$output/run" "${against[@]}" --junit "$output/junit.xml" \
    --fail-on "${FAIL_ON:-error}" || status=$?
lanescope export "$output/run" --to markdown -o "$output/report.md"
if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then cat "$output/report.md" >>"$GITHUB_STEP_SUMMARY"; fi
exit "$status"
