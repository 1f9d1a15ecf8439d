package authn

import (
	"context"
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
)

// Tokens authenticates a static set of bearer tokens. Only hashes are kept and compared, so that the time of a lookup reveals
// nothing about the tokens.
type Tokens struct {
	users map[[sha256.Size]byte]User
}

// NewTokens makes an authenticator of token → user.
func NewTokens(users map[string]User) *Tokens {
	t := &Tokens{users: make(map[[sha256.Size]byte]User, len(users))}
	for token, user := range users {
		t.users[sha256.Sum256([]byte(token))] = withAuthenticated(user)
	}
	return t
}

// ReadTokenFile reads a file of lines token,user,uid,"group,group". The groups are optional.
func ReadTokenFile(path string) (*Tokens, error) {
	t := &Tokens{users: map[[sha256.Size]byte]User{}}
	err := readUsers(path, "token file '%s' must have at least 3 columns (token, user name, user uid), found %d", func(token string, user User) error {
		if token == "" {
			return nil
		}
		t.users[sha256.Sum256([]byte(token))] = withAuthenticated(user)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// readUsers reads a file of lines secret,user,uid,"group,group".
func readUsers(path, tooFewColumns string, add func(secret string, user User) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	reader := csv.NewReader(file)
	reader.FieldsPerRecord = -1
	for {
		record, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if len(record) < 3 {
			return fmt.Errorf(tooFewColumns, path, len(record))
		}
		user := User{Username: record[1], UID: record[2]}
		if len(record) > 3 {
			user.Groups = slices.DeleteFunc(strings.Split(record[3], ","), func(group string) bool { return group == "" })
		}
		if err := add(record[0], user); err != nil {
			line, _ := reader.FieldPos(0)
			return fmt.Errorf("%s, line %d: %w", path, line, err)
		}
	}
}

// Authenticate implements Authenticator.
func (t *Tokens) Authenticate(r *http.Request) (User, bool, error) {
	token, _ := bearer(r.Header)
	if token == "" {
		return User{}, false, nil
	}
	user, ok, _ := t.authenticate(r.Context(), token)
	if !ok {
		return User{}, false, fmt.Errorf("bearer token: %w", ErrBadCredential)
	}
	return user, true, nil
}

func (t *Tokens) authenticate(_ context.Context, token string) (User, bool, error) {
	user, ok := t.users[sha256.Sum256([]byte(token))]
	return user, ok, nil
}
