#!/usr/bin/env bash
# Start SGLang on {{ record.name }} {{ record.version }}.
# Rendered; change the recipe's [node] table, not this file. Further arguments go to SGLang.
#
#   MODEL=/models/x ./launch.sh --tp 2
set -euo pipefail

: "${MODEL:?set MODEL to the directory or name of a model}"
PYTHON="${PYTHON:-python}"
WHEELHOUSE={{ location }}
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
CHECK="${CHECK:-$HERE/install-check.pyz}"

refuse() {
    echo "refused: $1" >&2
    echo "  SGLWHEEL_ALLOW=1 runs it all the same" >&2
    [ "${SGLWHEEL_ALLOW:-0}" = 1 ] || exit 9
}

# The wheel must be ours and torch what it was, or nothing below means anything.
"$PYTHON" "$CHECK" after --wheelhouse "$WHEELHOUSE" --release {{ record.id }} --state "$HERE/sglwheel-node.json" || refuse "the environment is not as it was installed"
{% for setting in kit.environment %}

# {{ setting.reason }}
# Source: {{ setting.source }}
export {{ setting.word }}
{% endfor %}

arguments=()
{% for setting in kit.arguments %}
# {{ setting.reason }}
# Source: {{ setting.source }}
arguments+=({{ setting.word }})
{% endfor %}
arguments+=("$@")

# What is known to fail, or to compute garbage, on this GPU.
previous=""
for word in "${arguments[@]}"; do
    case "$word" in --*=*) previous="${word%%=*}" word="${word#*=}" ;; esac
    case "$previous" in
{% for refusal in refusals %}
    {{ refusal.flag }})
        # Source: {{ refusal.source }}
        case "$word" in {{ refusal.pattern }}) refuse "{{ refusal.flag }} $word {{ refusal.reason }}" ;; esac
        ;;
{% endfor %}
    esac
    previous="$word"
done

# A flag that this SGLang does not know would end it after the model was read.
help="$("$PYTHON" -m sglang.launch_server --help 2>/dev/null || true)"
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
