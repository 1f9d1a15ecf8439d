package authn

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// passwordCacheTTL is how long a correct password is cached by its digest: bcrypt is too slow for every request.
const passwordCacheTTL = time.Minute

// unknownUserHash is compared with when the user does not exist, so that the time does not reveal it.
const unknownUserHash = "$2a$10$CwTycUXWue0Thq9StjUM0uJ8vZ0ZQ0m3bqBSRUVQbiv5MQTQxWqVe"

// Passwords authenticates user names and passwords by HTTP basic authentication. Only bcrypt hashes are kept. It is off unless
// a password file is configured.
type Passwords struct {
	users    map[string]passwordUser
	digester digester
	verified digestCache[time.Time] // until when a name and password are cached
}

type passwordUser struct {
	hash []byte
	user User
}

// ReadPasswordFile reads a file of lines bcrypt-hash,user,uid,"group,group". The groups are optional.
func ReadPasswordFile(path string) (*Passwords, error) {
	p := &Passwords{users: map[string]passwordUser{}, digester: newDigester()}
	err := readUsers(path, "password file '%s' must have at least 3 columns (bcrypt hash, user name, user uid), found %d", func(hash string, user User) error {
		if _, err := bcrypt.Cost([]byte(hash)); err != nil {
			return fmt.Errorf("invalid bcrypt hash of user %q: %w", user.Username, err)
		}
		if _, known := p.users[user.Username]; known {
			return fmt.Errorf("duplicate user %q", user.Username)
		}
		p.users[user.Username] = passwordUser{hash: []byte(hash), user: withAuthenticated(user)}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

var errBadPassword = errors.New("invalid username or password")

// Authenticate implements Authenticator.
func (p *Passwords) Authenticate(r *http.Request) (User, bool, error) {
	name, password, ok := r.BasicAuth()
	if !ok {
		return User{}, false, nil
	}
	key := p.digester.sum(name, []string{password})
	found, exists := p.users[name]
	if until, ok := p.verified.get(key); ok && exists && time.Now().Before(until) {
		return found.user, true, nil
	}
	hash := found.hash
	if !exists {
		hash = []byte(unknownUserHash)
	}
	// bcrypt returns an error for passwords that are too long for it, instead of truncating them.
	if err := bcrypt.CompareHashAndPassword(hash, []byte(password)); err != nil || !exists {
		return User{}, false, errBadPassword
	}
	p.verified.set(key, time.Now().Add(passwordCacheTTL))
	return found.user, true, nil
}
