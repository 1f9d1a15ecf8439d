package authn

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"sync/atomic"
)

// Keys are the public keys that service-account tokens may be signed with. There is more than one while a new key replaces
// an old one: the new one signs, both verify until the last old token has expired.
type Keys struct {
	set atomic.Pointer[keySet]
}

// keySet never changes.
type keySet struct {
	all  []namedKey
	byID map[string][]namedKey
}

type namedKey struct {
	id        string
	algorithm string
	key       crypto.PublicKey
}

// NewKeys makes a set of keys, the one that signs first. Of a private key the public half is taken.
func NewKeys(keys ...any) (*Keys, error) {
	k := &Keys{}
	return k, k.Replace(keys...)
}

// Replace changes the keys while the server runs: the next token is verified against the new ones.
func (k *Keys) Replace(keys ...any) error {
	if len(keys) == 0 {
		return errors.New("no keys to verify service-account tokens with")
	}
	set := &keySet{byID: make(map[string][]namedKey, len(keys))}
	for i, key := range keys {
		if private, ok := key.(interface{ Public() crypto.PublicKey }); ok {
			key = private.Public()
		}
		algorithm, err := keyAlgorithm(key)
		if err != nil {
			return fmt.Errorf("key #%d: %w", i, err)
		}
		id, err := keyID(key)
		if err != nil {
			return fmt.Errorf("key #%d: %w", i, err)
		}
		if len(set.byID[id]) > 0 {
			continue
		}
		named := namedKey{id: id, algorithm: algorithm, key: key}
		set.all = append(set.all, named)
		set.byID[id] = append(set.byID[id], named)
	}
	k.set.Store(set)
	return nil
}

// candidates are the keys a token may be signed with: the one it names, or all when it names none.
func (s *keySet) candidates(id string) []namedKey {
	if id == "" {
		return s.all
	}
	return s.byID[id]
}

// keyID names a key so that nobody can be tempted to use the name as the key: the hash of its encoding.
func keyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// jsonWebKey is a public key as the world exchanges it.
type jsonWebKey struct {
	Use       string `json:"use,omitempty"`
	Type      string `json:"kty"`
	ID        string `json:"kid,omitempty"`
	Curve     string `json:"crv,omitempty"`
	Algorithm string `json:"alg,omitempty"`
	X         string `json:"x,omitempty"`
	Y         string `json:"y,omitempty"`
	N         string `json:"n,omitempty"`
	E         string `json:"e,omitempty"`
}

type jsonWebKeys struct {
	Keys []jsonWebKey `json:"keys"`
}

func newJSONWebKey(k namedKey) jsonWebKey {
	j := jsonWebKey{Use: "sig", ID: k.id, Algorithm: k.algorithm}
	encode := base64.RawURLEncoding.EncodeToString
	switch key := k.key.(type) {
	case *rsa.PublicKey:
		j.Type, j.N, j.E = "RSA", encode(key.N.Bytes()), encode(big.NewInt(int64(key.E)).Bytes())
	case *ecdsa.PublicKey:
		j.Type, j.Curve = "EC", key.Curve.Params().Name
		// A 4, then the two coordinates; the key was encoded before, for its id.
		if point, err := key.Bytes(); err == nil {
			half := len(point) / 2
			j.X, j.Y = encode(point[1:half+1]), encode(point[half+1:])
		}
	}
	return j
}

// parseKeys reads the keys an identity provider publishes. Keys of kinds that cannot verify our tokens are left out.
func parseKeys(data []byte) (*keySet, error) {
	var keys jsonWebKeys
	if err := json.Unmarshal(data, &keys); err != nil {
		return nil, fmt.Errorf("decode keys: %w", err)
	}
	set := &keySet{byID: make(map[string][]namedKey, len(keys.Keys))}
	for _, j := range keys.Keys {
		if j.Use != "" && j.Use != "sig" {
			continue
		}
		key, err := j.publicKey()
		if err != nil {
			continue
		}
		named := namedKey{id: j.ID, algorithm: j.Algorithm, key: key}
		set.all = append(set.all, named)
		set.byID[j.ID] = append(set.byID[j.ID], named)
	}
	if len(set.all) == 0 {
		return nil, errors.New("no usable keys")
	}
	return set, nil
}

var curves = []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}

func (j jsonWebKey) publicKey() (crypto.PublicKey, error) {
	switch j.Type {
	case "RSA":
		n, errN := decodePart(j.N)
		e, errE := decodePart(j.E)
		if errN != nil || errE != nil || len(n) == 0 || len(e) == 0 || len(e) > 4 {
			return nil, errors.New("invalid RSA key")
		}
		exponent := 0
		for _, b := range e {
			exponent = exponent<<8 | int(b)
		}
		return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: exponent}, nil
	case "EC":
		i := slices.IndexFunc(curves, func(c elliptic.Curve) bool { return c.Params().Name == j.Curve })
		x, errX := decodePart(j.X)
		y, errY := decodePart(j.Y)
		if i < 0 || errX != nil || errY != nil || len(x) != len(y) {
			return nil, errors.New("invalid EC key")
		}
		return ecdsa.ParseUncompressedPublicKey(curves[i], slices.Concat([]byte{4}, x, y))
	}
	return nil, fmt.Errorf("keys of type %q are not supported", j.Type)
}

// fixedSignature turns an ECDSA signature as Go writes it into the two numbers of equal length that a JWT has.
func fixedSignature(der []byte, half int) ([]byte, error) {
	var parts struct{ R, S *big.Int }
	if rest, err := asn1.Unmarshal(der, &parts); err != nil || len(rest) > 0 {
		return nil, errors.New("unexpected form of an ECDSA signature")
	}
	signature := make([]byte, 2*half)
	parts.R.FillBytes(signature[:half])
	parts.S.FillBytes(signature[half:])
	return signature, nil
}
