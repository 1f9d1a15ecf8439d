// Package bootstrap lets a host with a token join the cluster as a node, and renews the node's certificates.
//
// A Token holds a bootstrap token and the hash of the cluster CA's public key. With the hash the host verifies the server
// before it sends anything (DiscoverCA). With the bootstrap token it may request one thing: a client certificate as the
// node it wants to become (Certificate.Obtain). From then on it authenticates as that node and renews its certificates in
// the same way (Certificate.Run). Private keys never leave the host.
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

// How bootstrap tokens are stored. The names are upstream's.
const (
	SecretType = corev1.SecretType("bootstrap.kubernetes.io/token")
	// secretPrefix and the token's ID are the name of its secret.
	secretPrefix = "bootstrap-token-"
	// NodeGroup is the group that may request node client certificates. kubeadm's tokens have it as well.
	NodeGroup = "system:bootstrappers:kubeadm:default-node-token"

	idLength, secretLength = 6, 16
)

// Hash is the SHA-256 of a CA's public key (SubjectPublicKeyInfo). It does not change when the certificate is renewed.
type Hash [sha256.Size]byte

// HashOf is the hash of a certificate's public key.
func HashOf(ca *x509.Certificate) Hash {
	return sha256.Sum256(ca.RawSubjectPublicKeyInfo)
}

func (h Hash) String() string { return "sha256:" + hex.EncodeToString(h[:]) }

// Token is what a new node needs to join: a bootstrap token, and the hash of the cluster's CA.
type Token struct {
	ID, Secret string
	CAHash     Hash
}

// NewToken creates a random token.
func NewToken(ca Hash) Token {
	// rand.Text is base 32, so lower case is unambiguous.
	return Token{ID: strings.ToLower(rand.Text()[:idLength]), Secret: strings.ToLower(rand.Text()[:secretLength]), CAHash: ca}
}

var tokenPattern = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})\.([a-f0-9]{64})$`)

// ParseToken parses the format of String.
func ParseToken(text string) (Token, error) {
	parts := tokenPattern.FindStringSubmatch(strings.TrimSpace(text))
	if parts == nil {
		return Token{}, errors.New("not a token as printed by `skiff token create`: expected three parts of 6, 16 and 64 characters separated by dots")
	}
	t := Token{ID: parts[1], Secret: parts[2]}
	_, err := hex.Decode(t.CAHash[:], []byte(parts[3]))
	return t, err
}

// String returns the token in the format that ParseToken accepts. It is a secret.
func (t Token) String() string { return t.Bearer() + "." + hex.EncodeToString(t.CAHash[:]) }

// Bearer returns the bootstrap token, which authenticates to the API server.
func (t Token) Bearer() string { return t.ID + "." + t.Secret }

// ToSecret returns the secret that stores the token. It does not expire if end is zero.
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

// SecretName returns the name of the secret of a token ID.
func SecretName(id string) string { return secretPrefix + id }

// IDOf returns the ID of a token given as its ID, as a bootstrap token or as a whole token.
func IDOf(text string) (string, error) {
	id, _, _ := strings.Cut(text, ".")
	if len(id) != idLength || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		return "", fmt.Errorf("%q is not a token ID: list them with `skiff token ls`", id)
	}
	return id, nil
}
