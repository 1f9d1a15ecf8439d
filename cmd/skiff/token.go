package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"skiff/internal/config"
	"skiff/internal/system"
)

// token is `skiff token create|ls|delete`.
func token(ctx context.Context, args []string) error {
	c := config.DefaultToken()
	words, err := readArguments("token", &tokenUsage{&c}, args)
	if err != nil {
		return err
	}
	if len(words) == 0 {
		words = []string{"ls"}
	}
	switch verb, ids := words[0], words[1:]; {
	case verb == "create" && len(ids) == 0:
		return system.CreateToken(ctx, c, os.Stdout)
	case verb == "ls" && len(ids) == 0:
		return system.ListTokens(ctx, c, os.Stdout)
	case verb == "delete" && len(ids) > 0:
		return system.DeleteTokens(ctx, c, ids, os.Stdout)
	case verb == "delete":
		return errors.New("token delete: name the tokens to delete by their ids")
	default:
		return fmt.Errorf("unknown token command %q: it is create, ls or delete ID", verb)
	}
}

// tokenUsage adds what the flags do not tell.
type tokenUsage struct{ *config.Token }

func (c *tokenUsage) Flags(fs *flag.FlagSet) {
	fs.Usage = func() {
		fmt.Fprintln(fs.Output(), "Usage: skiff token [flags] create | ls | delete ID...\n\n"+
			"The tokens by which further machines join. `create` prints one word; on the new machine:\n\n"+
			"  skiff agent --server https://ADDRESS:6443 --token WORD\n\n"+
			"The word is a secret, and by it the new machine also knows this server from every other.")
		fs.PrintDefaults()
	}
	c.Token.Flags(fs)
}
