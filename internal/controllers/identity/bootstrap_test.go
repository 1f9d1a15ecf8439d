package identity

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func bootstrapToken(id string, change func(data map[string][]byte)) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: named("kube-system", "bootstrap-token-"+id), Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{
		"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-signing": []byte("true"),
	}}
	if change != nil {
		change(secret.Data)
	}
	return secret
}

// The signature is the one upstream's program computes for the same content and token.
func TestDetachedSignature(t *testing.T) {
	const want = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
	if got := detachedSignature("Hello from the other side. I must have called a thousand times.", "joshua", "my voice is my passcode"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestClusterInfoIsSigned(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(t time.Time) func(map[string][]byte) {
		return func(data map[string][]byte) { data["expiration"] = []byte(t.Format(time.RFC3339)) }
	}
	other := bootstrapToken("nospace", nil)
	other.Namespace = "default"
	misnamed := bootstrapToken("fffff1", nil)
	misnamed.Name = "bootstrap-token-zzzzzz"
	v := bootstrapView{
		info: &corev1.ConfigMap{ObjectMeta: named("kube-public", "cluster-info"), Data: map[string]string{
			"kubeconfig": "content", "jws-kubeconfig-gone11": "old", "jws-kubeconfig-aaaaaa": "stale", "mine": "kept"}},
		secrets: []*corev1.Secret{
			bootstrapToken("aaaaaa", nil), bootstrapToken("bbbbbb", at(now.Add(time.Hour))), bootstrapToken("cccccc", at(now.Add(-time.Hour))),
			bootstrapToken("dddddd", func(data map[string][]byte) { delete(data, "usage-bootstrap-signing") }),
			bootstrapToken("eeeeee", func(data map[string][]byte) { data["expiration"] = []byte("tomorrow") }), other, misnamed,
		},
		now: now,
	}
	plan := (&bootstrapSigner{}).Reconcile(v)
	if len(plan.Steps) != 1 {
		t.Fatalf("%+v", plan)
	}
	next := plan.Steps[0].Writes[0].Object.(*corev1.ConfigMap)
	want := map[string]string{
		"kubeconfig": "content", "mine": "kept",
		"jws-kubeconfig-aaaaaa": detachedSignature("content", "aaaaaa", "0123456789abcdef"),
		"jws-kubeconfig-bbbbbb": detachedSignature("content", "bbbbbb", "0123456789abcdef"),
	}
	if len(next.Data) != len(want) {
		t.Errorf("%v", next.Data)
	}
	for key, value := range want {
		if next.Data[key] != value {
			t.Errorf("%s is %q, want %q", key, next.Data[key], value)
		}
	}
	v.info = next
	if plan := (&bootstrapSigner{}).Reconcile(v); !plan.Empty() {
		t.Errorf("a second look changes %+v", plan)
	}
}

func TestTokensArePast(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for expiration, want := range map[string]struct {
		deleted bool
		again   time.Duration
	}{
		"":                     {false, 0},
		"2026-01-01T01:00:00Z": {false, time.Hour},
		"2025-01-01T01:00:00Z": {true, 0},
		"nonsense":             {true, 0},
	} {
		plan := cleanToken(bootstrapToken("aaaaaa", func(data map[string][]byte) { data["expiration"] = []byte(expiration) }), now)
		if (len(plan.Steps) > 0) != want.deleted || plan.RequeueAfter != want.again {
			t.Errorf("%q: %+v", expiration, plan)
		}
	}
}
