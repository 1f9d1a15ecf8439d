// Package bootstrap is how a machine that has nothing but one word becomes a node, and how a node's certificates stay fresh.
//
// The word (Token) holds a bootstrap token and the hash of the cluster authority's public key. By the hash the machine knows the server
// for certain before it tells it anything (DiscoverCA); with the token it may ask for one thing, a certificate as the node it wants to
// be (Certificate.Obtain). From then on it acts as that node, and has its certificates renewed in the same way (Certificate.Run): private
// keys never leave the machine.
package bootstrap

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// How bootstrap tokens are kept: the names are those that other tools read and write too.
const (
	SecretType = corev1.SecretType("bootstrap.kubernetes.io/token")
	// secretPrefix stands before a token's id in the name of its secret.
	secretPrefix = "bootstrap-token-"
	// NodeGroup is the group whose members may ask for the certificate of a node. Tokens of kubeadm have it too.
	NodeGroup = "system:bootstrappers:kubeadm:default-node-token"

	idLength, secretLength = 6, 16
)

// Hash is the SHA-256 of the public key of an authority, in the form certificates hold it. It does not change when the certificate is renewed.
type Hash [sha256.Size]byte

// HashOf is the hash of a certificate's public key.
func HashOf(authority *x509.Certificate) Hash {
	return sha256.Sum256(authority.RawSubjectPublicKeyInfo)
}

func (h Hash) String() string { return "sha256:" + hex.EncodeToString(h[:]) }

// Token is what a new node needs to know: by which token it may introduce itself, and to whom.
type Token struct {
	ID, Secret string
	CAHash     Hash
}

// NewToken makes a token that nobody can guess.
func NewToken(authority Hash) Token {
	// Text is base 32: no character of it means another in lower case.
	return Token{ID: strings.ToLower(rand.Text()[:idLength]), Secret: strings.ToLower(rand.Text()[:secretLength]), CAHash: authority}
}

var tokenPattern = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})\.([a-f0-9]{64})$`)

// ParseToken reads a token as String writes it.
func ParseToken(text string) (Token, error) {
	parts := tokenPattern.FindStringSubmatch(strings.TrimSpace(text))
	if parts == nil {
		return Token{}, errors.New("this is not a token as `skiff token create` prints it: three words of 6, 16 and 64 characters with dots between them")
	}
	t := Token{ID: parts[1], Secret: parts[2]}
	_, err := hex.Decode(t.CAHash[:], []byte(parts[3]))
	return t, err
}

// String is the one word to hand to a new machine. It is a secret.
func (t Token) String() string { return t.Bearer() + "." + hex.EncodeToString(t.CAHash[:]) }

// Bearer is what the API server is shown.
func (t Token) Bearer() string { return t.ID + "." + t.Secret }

// Kept is how the cluster keeps the token. Without an end it is good for ever.
func (t Token) ToSecret(description string, groups []string, end time.Time) *corev1.Secret {
	data := map[string]string{
		"token-id": t.ID, "token-secret": t.Secret, "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
		"auth-extra-groups": strings.Join(groups, ","),
	}
	if description != "" {
		data["description"] = description
	}
	if !end.IsZero() {
		data["expiration"] = end.UTC().Format(time.RFC3339)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: SecretName(t.ID)}, Type: SecretType, Data: map[string][]byte{},
	}
	for key, value := range data {
		secret.Data[key] = []byte(value)
	}
	return secret
}

// SecretName is the name of the secret that keeps the token of an id.
func SecretName(id string) string { return secretPrefix + id }

// IDOf finds out which token is meant: by its id, by the token itself or by the whole word.
func IDOf(text string) (string, error) {
	id, _, _ := strings.Cut(text, ".")
	if len(id) != idLength || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return "", fmt.Errorf("%q is not the id of a token: `skiff token ls` shows them", id)
	}
	return id, nil
}
