package environment

import (
	"fmt"
	"strings"
)

// fileVariable returns the value of a variable in an env file, or "" if it is not set. The format is a subset of shell
// syntax: NAME='value', where the value may span lines and has no escapes; comments; blank lines.
func fileVariable(content, key string) (string, error) {
	line := 0
	for content != "" {
		var text string
		text, content, _ = strings.Cut(content, "\n")
		line++
		text = strings.TrimLeft(strings.TrimSuffix(text, "\r"), " \t")
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		invalid := func(what string) error {
			return fmt.Errorf("invalid environment variable format at line %d: %s", line, what)
		}
		name, value, assigned := strings.Cut(text, "=")
		switch {
		case !assigned:
			return "", invalid("missing '='")
		case strings.TrimRight(name, " \t") == "":
			return "", invalid("empty variable name")
		case strings.TrimRight(name, " \t") != name:
			return "", invalid("whitespace before '=' is not allowed")
		case value != strings.TrimLeft(value, " \t"):
			// As in a shell, NAME= 'value' sets NAME to the empty string.
			if name == key {
				return "", nil
			}
			continue
		case !strings.HasPrefix(value, "'"):
			return "", invalid("value must be enclosed in single quotes")
		}
		value = value[1:]
		quoted, trailing, closed := strings.Cut(value, "'")
		for !closed {
			if content == "" {
				return "", invalid("unclosed single quote")
			}
			text, content, _ = strings.Cut(content, "\n")
			line++
			value += "\n" + strings.TrimSuffix(text, "\r")
			quoted, trailing, closed = strings.Cut(value, "'")
		}
		if trailing = strings.TrimLeft(trailing, " \t"); trailing != "" && !strings.HasPrefix(trailing, "#") {
			return "", invalid("unexpected content after closing quote")
		}
		if name == key {
			return quoted, nil
		}
	}
	return "", nil
}
