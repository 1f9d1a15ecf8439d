package authn

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-jose/go-jose/v4"
	kjson "sigs.k8s.io/json"
)

// go-jose parses, verifies and signs JWTs. Three checks are added here: a token has exactly one accepted spelling; only the
// algorithms below are accepted, and only with a key of their type; and claims are decoded strictly, so that two readers
// cannot find different values in them. See docs/decisions/0011-tokens.md.

// acceptedAlgorithms are the signature algorithms a token may be signed with.
var acceptedAlgorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512,
}

// parsedAlgorithms are those a token may name and still be parsed, so that the error of verify can name the algorithm. "none"
// is not among them: an unsigned token is malformed.
var parsedAlgorithms = append(slices.Clone(acceptedAlgorithms), jose.EdDSA, jose.HS256, jose.HS384, jose.HS512)

// unverifiedToken is a parsed JWT. Its claims must not be trusted before verify has returned nil.
type unverifiedToken struct {
	jws       *jose.JSONWebSignature
	algorithm jose.SignatureAlgorithm
	keyID     string
	claims    []byte
}

var (
	errMalformedToken   = errors.New("malformed token")
	errInvalidSignature = errors.New("invalid signature")
)

// parseToken parses a token in JWS compact serialization.
func parseToken(token string) (*unverifiedToken, error) {
	if len(token) > maxTokenBytes || !isCanonical(token) {
		return nil, errMalformedToken
	}
	jws, err := jose.ParseSignedCompact(token, parsedAlgorithms)
	if err != nil || len(jws.Signatures) != 1 {
		return nil, errMalformedToken
	}
	header := jws.Signatures[0].Protected
	// Both change what the signature covers, and no issuer of bearer tokens uses them.
	for _, name := range []jose.HeaderKey{"crit", "b64"} {
		if _, ok := header.ExtraHeaders[name]; ok {
			return nil, errMalformedToken
		}
	}
	return &unverifiedToken{
		jws: jws, algorithm: jose.SignatureAlgorithm(header.Algorithm), keyID: header.KeyID,
		claims: jws.UnsafePayloadWithoutVerification(),
	}, nil
}

var strictBase64 = base64.RawURLEncoding.Strict()

// isCanonical reports whether the token has three parts, each the one base64url encoding of its bytes. go-jose also accepts
// line breaks and stray trailing bits, by which one token could be written in many ways.
func isCanonical(token string) bool {
	if strings.ContainsAny(token, "\r\n") {
		return false
	}
	parts := 0
	for part := range strings.SplitSeq(token, ".") {
		if parts++; part == "" || parts > 3 {
			return false
		}
		if _, err := strictBase64.DecodeString(part[len(part)-len(part)%4:]); err != nil {
			return false
		}
	}
	return parts == 3
}

// decodeStrict decodes an object whose field names are exactly those expected, none of them twice: two readers must not
// find different things in it. Unknown fields are ignored.
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

// verify returns nil if the key's owner has signed the token. An algorithm that is not for the key's type fails.
func (t *unverifiedToken) verify(key *jose.JSONWebKey) error {
	if !slices.Contains(acceptedAlgorithms, t.algorithm) {
		return fmt.Errorf("signature algorithm %q is not accepted", t.algorithm)
	}
	if !isVerificationKey(key) {
		return errInvalidSignature
	}
	if _, err := t.jws.Verify(key); err != nil {
		return errInvalidSignature
	}
	return nil
}

// isVerificationKey reports whether the key is a public key of an accepted algorithm. A symmetric key never is.
func isVerificationKey(key *jose.JSONWebKey) bool {
	switch key.Key.(type) {
	case *rsa.PublicKey, *ecdsa.PublicKey:
		return true
	}
	return false
}

// keyAlgorithm is the algorithm the owner of the key signs with.
func keyAlgorithm(key crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch key := key.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		switch key.Curve.Params().Name {
		case "P-256":
			return jose.ES256, nil
		case "P-384":
			return jose.ES384, nil
		case "P-521":
			return jose.ES512, nil
		}
		return "", errors.New("unknown key curve, must be 256, 384, or 521")
	}
	return "", fmt.Errorf("unknown key type %T, must be RSA or ECDSA", key)
}

// signer signs tokens with one key.
type signer struct {
	signer jose.Signer
}

func newSigner(key crypto.Signer) (*signer, error) {
	public, err := newJSONWebKey(key.Public())
	if err != nil {
		return nil, err
	}
	s, err := jose.NewSigner(jose.SigningKey{
		Algorithm: jose.SignatureAlgorithm(public.Algorithm), Key: jose.JSONWebKey{Key: key, KeyID: public.KeyID},
	}, nil)
	if err != nil {
		return nil, err
	}
	return &signer{signer: s}, nil
}

// sign makes a token of the claims.
func (s *signer) sign(claims any) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", fmt.Errorf("encode claims: %w", err)
	}
	jws, err := s.signer.Sign(payload)
	if err != nil {
		return "", fmt.Errorf("sign token: %w", err)
	}
	return jws.CompactSerialize()
}

// stringOrArray is a list of strings that may be encoded as a single string.
type stringOrArray []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *stringOrArray) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*s = stringOrArray{one}
		return nil
	}
	return json.Unmarshal(data, (*[]string)(s))
}
