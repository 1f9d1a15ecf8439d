package authn

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/go-jose/go-jose/v4"
)

// Keys are the public keys that verify service-account tokens. There is more than one during key rotation: the new key signs,
// and both verify until the last token of the old key has expired.
type Keys struct {
	set atomic.Pointer[jose.JSONWebKeySet] // the sets are read-only
}

// NewKeys makes a set of keys, the signing key first. Of a private key the public half is used.
func NewKeys(keys ...any) (*Keys, error) {
	k := &Keys{}
	return k, k.Replace(keys...)
}

// Replace changes the keys while the server runs: the next token is verified with the new ones.
func (k *Keys) Replace(keys ...any) error {
	if len(keys) == 0 {
		return errors.New("no keys to verify service-account tokens with")
	}
	set := &jose.JSONWebKeySet{}
	for i, key := range keys {
		if private, ok := key.(interface{ Public() crypto.PublicKey }); ok {
			key = private.Public()
		}
		public, err := newJSONWebKey(key)
		if err != nil {
			return fmt.Errorf("key #%d: %w", i, err)
		}
		if len(set.Key(public.KeyID)) == 0 {
			set.Keys = append(set.Keys, *public)
		}
	}
	k.set.Store(set)
	return nil
}

// candidateKeys are the keys that may have signed a token with this key ID: all keys if it has none.
func candidateKeys(set *jose.JSONWebKeySet, keyID string) []jose.JSONWebKey {
	if keyID == "" {
		return set.Keys
	}
	return set.Key(keyID)
}

func newJSONWebKey(public crypto.PublicKey) (*jose.JSONWebKey, error) {
	algorithm, err := keyAlgorithm(public)
	if err != nil {
		return nil, err
	}
	id, err := keyID(public)
	if err != nil {
		return nil, err
	}
	return &jose.JSONWebKey{Key: public, KeyID: id, Algorithm: string(algorithm), Use: "sig"}, nil
}

// keyID is the SHA-256 hash of the key's DER encoding, as upstream names keys.
func keyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// parseKeys parses the JSON Web Key Set of an identity provider. Keys of other types and uses are ignored, as are those that
// are invalid: a provider may publish keys for others.
func parseKeys(data []byte) (*jose.JSONWebKeySet, error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &document); err != nil {
		return nil, fmt.Errorf("decode keys: %w", err)
	}
	set := &jose.JSONWebKeySet{}
	for _, raw := range document.Keys {
		var key jose.JSONWebKey
		if err := key.UnmarshalJSON(raw); err != nil || !isVerificationKey(&key) || key.Use != "" && key.Use != "sig" {
			continue
		}
		set.Keys = append(set.Keys, key)
	}
	if len(set.Keys) == 0 {
		return nil, errors.New("no usable keys")
	}
	return set, nil
}
