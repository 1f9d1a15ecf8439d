package authn

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// passwordLife is how long a password that was found right is known by its digest: comparing it with the file's hash is
// meant to be slow, too slow for every request.
const passwordLife = time.Minute

// nobody's hash is compared with when the user does not exist, so that the time taken does not tell.
const nobodysHash = "$2a$10$CwTycUXWue0Thq9StjUM0uJ8vZ0ZQ0m3bqBSRUVQbiv5MQTQxWqVe"

// Passwords accepts user names and passwords by HTTP basic authentication. Only bcrypt hashes are kept. Nobody has it unless
// a password file is named.
type Passwords struct {
	users    map[string]passwordUser
	digester digester
	right    recent[time.Time] // until when a name and password are known to be right
}

type passwordUser struct {
	hash []byte
	user User
}

// ReadPasswordFile reads a file of lines bcrypt-hash,user,uid,"group,group". The groups may be left out.
func ReadPasswordFile(path string) (*Passwords, error) {
	p := &Passwords{users: map[string]passwordUser{}, digester: newDigester()}
	err := readUsers(path, "password file '%s' must have at least 3 columns (bcrypt hash, user name, user uid), found %d", func(hash string, user User) error {
		if _, err := bcrypt.Cost([]byte(hash)); err != nil {
			return fmt.Errorf("the hash of user %q is not one of bcrypt: %w", user.Username, err)
		}
		if _, known := p.users[user.Username]; known {
			return fmt.Errorf("user %q stands in the file twice", user.Username)
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
	key := p.digester.of(name, []string{password})
	found, known := p.users[name]
	if until, ok := p.right.get(key); ok && known && time.Now().Before(until) {
		return found.user, true, nil
	}
	hash := found.hash
	if !known {
		hash = []byte(nobodysHash)
	}
	// bcrypt knows only so many bytes; it refuses longer passwords rather than cutting them.
	if err := bcrypt.CompareHashAndPassword(hash, []byte(password)); err != nil || !known {
		return User{}, false, errBadPassword
	}
	p.right.set(key, time.Now().Add(passwordLife))
	return found.user, true, nil
}
