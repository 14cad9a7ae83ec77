#!/usr/bin/env bash
# Start SGLang on {{ record.name }} {{ record.version }}.
# Rendered; change the recipe's [node] table, not this file. Arguments go to SGLang, and before ours.
{% if record.upstream %}
# "At the pin" is SGLang at {{ record.upstream }}.
{% endif %}
#
#   MODEL=/models/x ./launch.sh --tp 2
set -euo pipefail

: "${MODEL:?set MODEL to the directory or name of a model}"
PYTHON="${PYTHON:-python}"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
CHECK="${CHECK:-$HERE/install-check.pyz}"

refuse() {
    echo "refused: $1" >&2
    echo "  SGLWHEEL_ALLOW=1 runs it all the same" >&2
    [ "${SGLWHEEL_ALLOW:-0}" = 1 ] || exit 9
}

# The wheel must be ours, torch what it was, and GPU and driver able to run it, or nothing below means anything.
# What the wheel must be stands in releases.json beside this file: starting needs no wheelhouse.
"$PYTHON" "$CHECK" start --wheelhouse "$HERE" --release {{ record.id }} --state "$HERE/sglwheel-node.json" ||
    refuse "this node is not what the wheel was installed for"
# The whole tool says more, where somebody installed it: libraries, torch's symbols, what SGLang asserts.
if command -v sglwheel >/dev/null; then
    sglwheel doctor --role node --python "$PYTHON" || refuse "sglwheel doctor found what is listed above"
fi
{% for item in node.environment %}

{{ comment(item) }}
export {{ item.name }}="${{ "{" }}{{ item.name }}:-{{ item.value }}}"
{% endfor %}

operator=("$@")
given() {
    local word
    for word in "${operator[@]}"; do
        case "$word" in "$1" | "$1"=*) return 0 ;; esac
    done
    return 1
}
arguments=()
{% for item in node.arguments %}

{{ comment(item) }}
given {{ item.name }} || arguments+=({{ item.words }})
{% endfor %}

arguments+=("$@")

# What is known to fail, or to compute garbage, on this GPU.
declares() {
    [ -f "$MODEL/$1" ] && grep -Eq -- "$2" "$MODEL/$1"
}
{% if node.refusals | selectattr("file") | list %}
[ -d "$MODEL" ] || echo "not checked: $MODEL is no directory here, so nothing is known of the model" >&2
{% endif %}
judge() {
{% for item in node.refusals %}
    {{ comment(item) | indent }}
    case "$1=$2" in
    {{ pattern(item) }})
{% if item.file %}
        ! declares {{ item.file }} {{ quote(item.matches) }} ||
            refuse "$1 $2: "{{ quote(item.reason) }}
{% else %}
        refuse "$1 $2: "{{ quote(item.reason) }}
{% endif %}
        ;;
    esac
{% endfor %}
    return 0
}
previous=""
for word in "${arguments[@]}"; do
    case "$word" in
    --*=*) judge "${word%%=*}" "${word#*=}" ;;
    *) judge "$previous" "$word" ;;
    esac
    previous="$word"
done

# A flag that this SGLang does not know would end it after the model was read.
help="$("$PYTHON" -m sglang.launch_server --help 2>/dev/null || true)"
[ -n "$help" ] || refuse "$PYTHON -m sglang.launch_server --help says nothing: is SGLang installed there?"
for word in "${arguments[@]}"; do
    case "$word" in
    --*)
        case "$help" in
        *"${word%%=*}"*) ;;
        *) refuse "this SGLang does not know ${word%%=*}" ;;
        esac
        ;;
    esac
done

exec "$PYTHON" -m sglang.launch_server --model-path "$MODEL" "${arguments[@]}"
