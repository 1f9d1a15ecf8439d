package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// documentedCommands finds commands of skiff in a document: lines of code blocks, and what is quoted as code in the text. Those of blocks are
// complete; those of the text may lack arguments.
func documentedCommands(text string) (complete, quoted []string) {
	fenced := false
	var continued string
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if !fenced && !strings.HasPrefix(line, "    ") {
			for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
				quoted = append(quoted, m[1])
			}
			continue
		}
		if rest, ok := strings.CutSuffix(line, `\`); ok {
			continued += rest + " "
			continue
		}
		complete = append(complete, continued+line)
		continued = ""
	}
	return complete, quoted
}

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	// ownCommand matches a command of skiff, started by root or not, from the tree or from PATH.
	ownCommand = regexp.MustCompile(`^\s*(?:\$ )?(?:sudo )?(?:\S*/)?skiff\s+(.*)$`)
	// shellWord matches a word of a command line, which may be quoted.
	shellWord = regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`)
)

// commandWords are the arguments of skiff in a command line. ok is false if it is a command of another program.
func commandWords(line string) (words []string, ok bool) {
	m := ownCommand.FindStringSubmatch(line)
	if m == nil {
		return nil, false
	}
	for _, word := range shellWord.FindAllString(m[1], -1) {
		switch {
		case strings.HasPrefix(word, "#"), word == "|", word == "||", word == "&&", word == "&", strings.HasPrefix(word, ">"):
			return words, true
		case word == "…", word == "...":
			continue // further flags
		}
		words = append(words, strings.Trim(word, `"'`))
	}
	return words, true
}

// checkCommand reports what is wrong with the arguments of skiff.
func checkCommand(words []string, complete bool) error {
	root := newRootCommand()
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	root.InitDefaultVersionFlag()
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	err = cmd.ParseFlags(rest)
	if _, ok := errors.AsType[*pflag.ValueRequiredError](err); ok && !complete {
		return nil // the text names the flag alone
	}
	if err != nil {
		return err
	}
	args := cmd.Flags().Args()
	if complete || cmd.HasSubCommands() {
		return cmd.ValidateArgs(args)
	}
	return nil
}

// TestDocumentedCommands checks that the commands and flags in the documents exist.
func TestDocumentedCommands(t *testing.T) {
	var files []string
	for _, pattern := range []string{"../../*.md", "../../docs/*.md", "../../docs/decisions/*.md"} {
		matching, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, matching...)
	}
	found := 0
	for _, file := range files {
		if file == referenceFile {
			continue // it is the help of the commands
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		check := func(lines []string, complete bool) {
			for _, line := range lines {
				words, ok := commandWords(line)
				if !ok || strings.Contains(strings.Join(words, " "), "|") {
					continue // of another program, or of alternatives
				}
				found++
				if err := checkCommand(words, complete); err != nil {
					t.Errorf("%s: %q: %v", strings.TrimPrefix(file, "../../"), strings.TrimSpace(line), err)
				}
			}
		}
		complete, quoted := documentedCommands(string(data))
		check(complete, true)
		check(quoted, false)
	}
	if found < 50 {
		t.Errorf("only %d commands found", found)
	}
}

// The check itself finds mistakes.
func TestCheckCommand(t *testing.T) {
	for line, want := range map[string]string{
		"skiff server --data-dir /d   # a comment":               "",
		"    sudo bin/skiff token create --server --ttl 1h":      "",
		`skiff server --snapshot-schedule "0 */6 * * *" …`:       "",
		"skiff snapshot restore ./NAME.snapshot":                 "",
		"skiff --version":                                        "",
		"skiff server --no-such-flag":                            "unknown flag",
		"skiff sever":                                            "unknown command",
		"skiff token crate":                                      "unknown command",
		"skiff token create --ttl soon":                          "invalid argument",
		"skiff image import":                                     "expected the archives",
		"skiff server now":                                       "unexpected argument",
		"/usr/local/bin/skiff agent --server https://a --tokn x": "unknown flag: --tokn",
	} {
		words, ok := commandWords(line)
		if !ok {
			t.Errorf("%q is not taken for a command", line)
		}
		err := checkCommand(words, true)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want %q", line, err, want)
		}
	}
	if _, ok := commandWords("kubectl get pods"); ok {
		t.Error("kubectl is taken for skiff")
	}
}
