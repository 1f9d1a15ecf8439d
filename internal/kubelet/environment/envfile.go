package environment

import (
	"fmt"
	"strings"
)

// fileVariable returns the value of a variable in an env file, or "" where it is not set. The format is a small part of what
// a shell reads: NAME='value', where the value may span lines and nothing in it is special; comments; blank lines.
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
		wrong := func(what string) error {
			return fmt.Errorf("invalid environment variable format at line %d: %s", line, what)
		}
		name, value, assigned := strings.Cut(text, "=")
		switch {
		case !assigned:
			return "", wrong("missing '='")
		case strings.TrimRight(name, " \t") == "":
			return "", wrong("empty variable name")
		case strings.TrimRight(name, " \t") != name:
			return "", wrong("whitespace before '=' is not allowed")
		case value != strings.TrimLeft(value, " \t"):
			// As in a shell, NAME= 'value' sets NAME to nothing.
			if name == key {
				return "", nil
			}
			continue
		case !strings.HasPrefix(value, "'"):
			return "", wrong("value must be enclosed in single quotes")
		}
		value = value[1:]
		quoted, behind, closed := strings.Cut(value, "'")
		for !closed {
			if content == "" {
				return "", wrong("unclosed single quote")
			}
			text, content, _ = strings.Cut(content, "\n")
			line++
			value += "\n" + strings.TrimSuffix(text, "\r")
			quoted, behind, closed = strings.Cut(value, "'")
		}
		if behind = strings.TrimLeft(behind, " \t"); behind != "" && !strings.HasPrefix(behind, "#") {
			return "", wrong("unexpected content after closing quote")
		}
		if name == key {
			return quoted, nil
		}
	}
	return "", nil
}
