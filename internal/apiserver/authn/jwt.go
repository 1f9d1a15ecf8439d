package authn

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha256" // for crypto.SHA256
	_ "crypto/sha512" // for crypto.SHA384 and crypto.SHA512
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	kjson "sigs.k8s.io/json"
)

// A JWT is three parts, base64url, separated by dots: a header that names the key and the algorithm, the claims, and the
// signature of the two. Two things make reading one dangerous, and both are settled here: which algorithm counts is decided
// by the key, never by the header alone, so that a public key is never taken for a shared secret and "none" is no
// algorithm; and nothing of the claims is believed before verify has returned nil.

// jwt is a token taken apart, not yet believed.
type jwt struct {
	algorithm string
	keyID     string
	signed    string // header and claims, as they were signed
	claims    []byte
	signature []byte
}

var (
	errMalformedToken   = errors.New("malformed token")
	errInvalidSignature = errors.New("invalid signature")
)

// parseJWT takes a token in compact form apart.
func parseJWT(token string) (*jwt, error) {
	if len(token) > maxTokenBytes {
		return nil, errMalformedToken
	}
	header, rest, ok := strings.Cut(token, ".")
	claims, signature, more := strings.Cut(rest, ".")
	if !ok || !more || header == "" || claims == "" || signature == "" || strings.Contains(signature, ".") {
		return nil, errMalformedToken
	}
	rawHeader, err := decodePart(header)
	if err != nil {
		return nil, errMalformedToken
	}
	var h struct {
		Algorithm string          `json:"alg"`
		KeyID     string          `json:"kid"`
		Critical  json.RawMessage `json:"crit"`
		Encoding  json.RawMessage `json:"b64"`
	}
	if err := decodeStrict(rawHeader, &h); err != nil {
		return nil, errMalformedToken
	}
	// Both change what the signature means, in ways this parser does not know.
	if h.Critical != nil || h.Encoding != nil {
		return nil, errMalformedToken
	}
	t := &jwt{algorithm: h.Algorithm, keyID: h.KeyID, signed: token[:len(header)+1+len(claims)]}
	if t.claims, err = decodePart(claims); err != nil {
		return nil, errMalformedToken
	}
	if t.signature, err = decodePart(signature); err != nil {
		return nil, errMalformedToken
	}
	return t, nil
}

var partEncoding = base64.RawURLEncoding.Strict()

// decodePart allows exactly one way of writing each value: no line breaks, no padding, no stray bits.
func decodePart(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, errMalformedToken
	}
	return partEncoding.DecodeString(s)
}

// decodeStrict reads an object whose field names are exactly those expected, none of them twice: two readers must not
// find different things in it. Fields that are not known are left alone.
func decodeStrict(data []byte, into any) error {
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return errors.New("not an object")
	}
	strict, err := kjson.UnmarshalStrict(data, into, kjson.DisallowDuplicateFields)
	if err != nil {
		return err
	}
	return errors.Join(strict...)
}

// hashes are the algorithms' hash functions; what is not here is no algorithm. The first two letters say what kind of key
// they are for.
var hashes = map[string]crypto.Hash{
	"RS256": crypto.SHA256, "RS384": crypto.SHA384, "RS512": crypto.SHA512,
	"PS256": crypto.SHA256, "PS384": crypto.SHA384, "PS512": crypto.SHA512,
	"ES256": crypto.SHA256, "ES384": crypto.SHA384, "ES512": crypto.SHA512,
}

// verify reports whether the key's owner has signed the token.
func (t *jwt) verify(key crypto.PublicKey) error {
	hash, ok := hashes[t.algorithm]
	if !ok {
		return fmt.Errorf("signature algorithm %q is not accepted", t.algorithm)
	}
	digest := hash.New()
	digest.Write([]byte(t.signed))
	sum := digest.Sum(nil)
	switch key := key.(type) {
	case *rsa.PublicKey:
		switch t.algorithm[:2] {
		case "RS":
			if rsa.VerifyPKCS1v15(key, hash, sum, t.signature) == nil {
				return nil
			}
		case "PS":
			if rsa.VerifyPSS(key, hash, sum, t.signature, nil) == nil {
				return nil
			}
		}
	case *ecdsa.PublicKey:
		if t.algorithm != curveAlgorithm(key) {
			break
		}
		half := (key.Curve.Params().BitSize + 7) / 8
		if len(t.signature) != 2*half {
			break
		}
		r, s := new(big.Int).SetBytes(t.signature[:half]), new(big.Int).SetBytes(t.signature[half:])
		if ecdsa.Verify(key, sum, r, s) {
			return nil
		}
	}
	return errInvalidSignature
}

// curveAlgorithm is the one algorithm that goes with the key's curve, or "".
func curveAlgorithm(key *ecdsa.PublicKey) string {
	switch key.Curve.Params().Name {
	case "P-256":
		return "ES256"
	case "P-384":
		return "ES384"
	case "P-521":
		return "ES512"
	}
	return ""
}

// keyAlgorithm is the algorithm a key signs with.
func keyAlgorithm(key crypto.PublicKey) (string, error) {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return "RS256", nil
	case *ecdsa.PublicKey:
		if algorithm := curveAlgorithm(key); algorithm != "" {
			return algorithm, nil
		}
		return "", errors.New("unknown key curve, must be 256, 384, or 521")
	}
	return "", fmt.Errorf("unknown key type %T, must be RSA or ECDSA", key)
}

// signer signs tokens with one key.
type signer struct {
	key    crypto.Signer
	hash   crypto.Hash
	half   int    // bytes of each half of an ECDSA signature; 0 for RSA
	header string // encoded
}

func newSigner(key crypto.Signer) (*signer, error) {
	algorithm, err := keyAlgorithm(key.Public())
	if err != nil {
		return nil, err
	}
	id, err := keyID(key.Public())
	if err != nil {
		return nil, err
	}
	header, err := json.Marshal(struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
	}{algorithm, id})
	if err != nil {
		return nil, err
	}
	s := &signer{key: key, hash: hashes[algorithm], header: base64.RawURLEncoding.EncodeToString(header)}
	if public, ok := key.Public().(*ecdsa.PublicKey); ok {
		s.half = (public.Curve.Params().BitSize + 7) / 8
	}
	return s, nil
}

// sign makes a token of the claims.
func (s *signer) sign(claims any) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("encode claims: %w", err)
	}
	signed := s.header + "." + base64.RawURLEncoding.EncodeToString(payload)
	digest := s.hash.New()
	digest.Write([]byte(signed))
	signature, err := s.key.Sign(rand.Reader, digest.Sum(nil), s.hash)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	if s.half > 0 {
		if signature, err = fixedSignature(signature, s.half); err != nil {
			return "", err
		}
	}
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature), nil
}

// unixTime is a date of a token: seconds since 1970, sometimes with a fraction, which is dropped.
type unixTime int64

func newUnixTime(t time.Time) *unixTime {
	u := unixTime(t.Unix())
	return &u
}

func (u unixTime) time() time.Time { return time.Unix(int64(u), 0) }

// UnmarshalJSON implements json.Unmarshaler.
func (u *unixTime) UnmarshalJSON(data []byte) error {
	seconds, err := strconv.ParseFloat(string(data), 64)
	if err != nil || seconds > 1<<53 || seconds < -1<<53 {
		return errors.New("not a date in seconds")
	}
	*u = unixTime(seconds)
	return nil
}

// oneOrMany is a list of strings that may be written as a single one.
type oneOrMany []string

// UnmarshalJSON implements json.Unmarshaler.
func (o *oneOrMany) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*o = oneOrMany{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(o))
}
