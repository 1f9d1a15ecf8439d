package bootstrap

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

func TestToken(t *testing.T) {
	token := NewToken(HashOf(&x509.Certificate{RawSubjectPublicKeyInfo: []byte("key")}))
	if again, err := ParseToken(token.String() + "\n"); err != nil || again != token {
		t.Errorf("%+v read as %+v, %v", token, again, err)
	}
	if other := NewToken(token.CAHash); other.ID == token.ID || other.Secret == token.Secret {
		t.Error("two tokens are alike")
	}
	hash := strings.Repeat("0f", 32)
	for _, test := range []struct {
		text string
		good bool
	}{
		{"abcdef.0123456789abcdef." + hash, true},
		{"abcdef.0123456789abcdef", false}, // it does not identify the server
		{"abcdef.0123456789abcdef.", false},
		{"abcdef.0123456789abcdef." + hash[2:], false},
		{"abcdef.0123456789abcdef." + hash + "00", false},
		{"abcdef.0123456789abcdef." + strings.ToUpper(hash), false},
		{"abcde.0123456789abcdef." + hash, false},
		{"ABCDEF.0123456789abcdef." + hash, false},
		{"abcdef.0123456789abcde/." + hash, false},
		{"x\nabcdef.0123456789abcdef." + hash, false},
		{"", false},
	} {
		if _, err := ParseToken(test.text); (err == nil) != test.good {
			t.Errorf("%q: %v", test.text, err)
		}
	}
}

func TestTokenSecret(t *testing.T) {
	token := Token{ID: "abcdef", Secret: "0123456789abcdef"}
	end := time.Date(2030, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	secret := token.ToSecret("for one", []string{NodeGroup}, end)
	want := map[string]string{
		"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
		"auth-extra-groups": NodeGroup, "description": "for one", "expiration": "2030-01-02T02:04:05Z",
	}
	if secret.Name != "bootstrap-token-abcdef" || secret.Namespace != "kube-system" || secret.Type != "bootstrap.kubernetes.io/token" || len(secret.Data) != len(want) {
		t.Errorf("%+v", secret)
	}
	for key, value := range want {
		if string(secret.Data[key]) != value {
			t.Errorf("%s: %q, want %q", key, secret.Data[key], value)
		}
	}
	if _, ok := token.ToSecret("", nil, time.Time{}).Data["expiration"]; ok {
		t.Error("a token without expiration expires")
	}
}

func TestIDOf(t *testing.T) {
	for text, want := range map[string]string{
		"abcdef": "abcdef", "abcdef.0123456789abcdef": "abcdef", NewToken(Hash{}).String(): "", "abc": "!", "../../a": "!", "": "!",
	} {
		got, err := IDOf(text)
		if want == "" {
			want = text[:6]
		}
		if (want == "!") != (err != nil) || err == nil && got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}
