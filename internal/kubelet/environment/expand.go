package environment

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Expand replaces every $(NAME) by its value. $$ is a dollar sign, so $$(NAME) is not expanded. A dollar sign before
// anything else is kept.
func Expand(text string, value func(name string) string) string {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		name, after, closed := strings.Cut(rest, ")")
		switch {
		case strings.HasPrefix(rest, "$"):
			out.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "(") && closed:
			out.WriteString(value(name[1:]))
			text = after
		default:
			out.WriteByte('$')
			text = rest
		}
	}
}

// ExpandAll expands references in a command or its arguments. Unknown references are kept.
func ExpandAll(texts []string, env []corev1.EnvVar) []string {
	if len(texts) == 0 {
		return nil
	}
	values := asMap(env)
	expanded := make([]string, len(texts))
	for i, text := range texts {
		expanded[i] = Expand(text, func(name string) string {
			if value, ok := values[name]; ok {
				return value
			}
			return "$(" + name + ")"
		})
	}
	return expanded
}

// ExpandStrict expands references that must all have a value, as in subPathExpr.
func ExpandStrict(text string, env []corev1.EnvVar) (string, error) {
	values, missing := asMap(env), map[string]bool{}
	expanded := Expand(text, func(name string) string {
		if values[name] == "" {
			missing[name] = true
		}
		return values[name]
	})
	if len(missing) > 0 {
		return "", fmt.Errorf("missing value for %s", strings.Join(slices.Sorted(maps.Keys(missing)), ", "))
	}
	return expanded, nil
}

func asMap(env []corev1.EnvVar) map[string]string {
	values := make(map[string]string, len(env))
	for _, variable := range env {
		values[variable.Name] = variable.Value
	}
	return values
}
