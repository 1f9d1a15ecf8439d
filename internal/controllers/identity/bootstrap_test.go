package identity

import (
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

var newYear = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type secretChange = func(*corev1.Secret)

func bootstrapToken(id string, changes ...secretChange) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: named("kube-system", "bootstrap-token-"+id), Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{
		"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-signing": []byte("true"),
	}}
	for _, change := range changes {
		change(secret)
	}
	return secret
}

func holding(key, value string) secretChange {
	return func(s *corev1.Secret) { s.Data[key] = []byte(value) }
}

func without(key string) secretChange { return func(s *corev1.Secret) { delete(s.Data, key) } }

func until(t time.Time) secretChange { return holding("expiration", t.Format(time.RFC3339)) }

// The signature is the one upstream's program computes for the same content and token.
func TestDetachedSignature(t *testing.T) {
	const want = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
	if got := detachedSignature("Hello from the other side. I must have called a thousand times.", "joshua", "my voice is my passcode"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	seen := map[string]bool{}
	for _, each := range [][3]string{{"", "a", "k"}, {"x", "a", "k"}, {"x", "b", "k"}, {"x", "a", "l"}, {"x ", "a", "k"}} {
		signature := detachedSignature(each[0], each[1], each[2])
		if parts := strings.Split(signature, "."); seen[signature] || len(parts) != 3 || parts[1] != "" {
			t.Errorf("%q: %s", each, signature)
		}
		seen[signature] = true
	}
}

func TestWhichTokensSign(t *testing.T) {
	for _, test := range []struct {
		what   string
		secret *corev1.Secret
		signs  bool
	}{
		{"one that may", bootstrapToken("abc123"), true},
		{"digits only", bootstrapToken("123456"), true},
		{"with an end", bootstrapToken("abcdef", until(newYear.Add(time.Second))), true},
		{"with an empty end", bootstrapToken("abcdef", holding("expiration", "")), true},
		{"in another zone of time", bootstrapToken("abcdef", holding("expiration", "2026-01-01T00:30:00+01:00")), false},
		{"at its end", bootstrapToken("abcdef", until(newYear)), false},
		{"past", bootstrapToken("abcdef", until(newYear.Add(-time.Hour))), false},
		{"with an end nobody can read", bootstrapToken("abcdef", holding("expiration", "tomorrow")), false},
		{"not to sign with", bootstrapToken("abcdef", without("usage-bootstrap-signing")), false},
		{"not to sign with, in words", bootstrapToken("abcdef", holding("usage-bootstrap-signing", "false")), false},
		{"to sign with, in other words", bootstrapToken("abcdef", holding("usage-bootstrap-signing", "True")), false},
		{"without id", bootstrapToken("abcdef", without("token-id")), false},
		{"without secret", bootstrapToken("abcdef", without("token-secret")), false},
		{"with an empty secret", bootstrapToken("abcdef", holding("token-secret", "")), false},
		{"another id than its name", bootstrapToken("abcdef", holding("token-id", "fedcba")), false},
		{"an id that is too short", bootstrapToken("abcde"), false},
		{"an id that is too long", bootstrapToken("abcdefg"), false},
		{"an id with a dot", bootstrapToken("ab.def"), false},
		{"an id with a dash", bootstrapToken("ab-def"), false},
		{"an id in capitals", bootstrapToken("ABCDEF"), false},
		{"no data", bootstrapToken("abcdef", func(s *corev1.Secret) { s.Data = nil }), false},
		{"in another namespace", bootstrapToken("abcdef", func(s *corev1.Secret) { s.Namespace = "default" }), false},
		{"of another type", bootstrapToken("abcdef", func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }), false},
		{"of another name", bootstrapToken("abcdef", func(s *corev1.Secret) { s.Name = "token-abcdef" }), false},
	} {
		id, key, ok := signingToken(test.secret, newYear)
		if ok != test.signs || ok && (id != string(test.secret.Data["token-id"]) || key != "0123456789abcdef") || !ok && id+key != "" {
			t.Errorf("%s: %q %q %v", test.what, id, key, ok)
		}
	}
}

func TestClusterInfoIsSigned(t *testing.T) {
	signed := func(content string, ids ...string) map[string]string {
		data := map[string]string{"kubeconfig": content}
		for _, id := range ids {
			data["jws-kubeconfig-"+id] = detachedSignature(content, id, "0123456789abcdef")
		}
		return data
	}
	and := func(data map[string]string, more ...string) map[string]string {
		for i := 0; i < len(more); i += 2 {
			data[more[i]] = more[i+1]
		}
		return data
	}
	a, b := bootstrapToken("aaaaaa"), bootstrapToken("bbbbbb", until(newYear.Add(time.Hour)))
	for _, test := range []struct {
		what    string
		data    map[string]string
		secrets []*corev1.Secret
		want    map[string]string // nil: not written
	}{
		{"no tokens", signed("c"), nil, nil},
		{"a first token", signed("c"), []*corev1.Secret{a}, signed("c", "aaaaaa")},
		{"two tokens", signed("c"), []*corev1.Secret{b, a}, signed("c", "aaaaaa", "bbbbbb")},
		{"signed already", signed("c", "aaaaaa", "bbbbbb"), []*corev1.Secret{a, b}, nil},
		{"a second token", signed("c", "aaaaaa"), []*corev1.Secret{a, b}, signed("c", "aaaaaa", "bbbbbb")},
		{"a token is gone", signed("c", "aaaaaa", "bbbbbb"), []*corev1.Secret{b}, signed("c", "bbbbbb")},
		{"all tokens are gone", signed("c", "aaaaaa"), nil, signed("c")},
		{"a token is past", signed("c", "aaaaaa"), []*corev1.Secret{bootstrapToken("aaaaaa", until(newYear))}, signed("c")},
		{"the content has changed", and(signed("c", "aaaaaa"), "kubeconfig", "d"), []*corev1.Secret{a}, signed("d", "aaaaaa")},
		{"the token's secret has changed", and(signed("c"), "jws-kubeconfig-aaaaaa", detachedSignature("c", "aaaaaa", "old")), []*corev1.Secret{a}, signed("c", "aaaaaa")},
		{"an empty content is content", signed(""), []*corev1.Secret{a}, signed("", "aaaaaa")},
		{"other keys are kept", and(signed("c", "cccccc"), "mine", "x"), []*corev1.Secret{a}, and(signed("c", "aaaaaa"), "mine", "x")},
		{"no content: nothing is touched", map[string]string{"jws-kubeconfig-cccccc": "x"}, []*corev1.Secret{a}, nil},
		{"no data", nil, []*corev1.Secret{a}, nil},
		{"other secrets sign nothing", signed("c"), []*corev1.Secret{{ObjectMeta: named("kube-system", "other"), Data: a.Data}}, nil},
	} {
		v := bootstrapView{info: &corev1.ConfigMap{ObjectMeta: named("kube-public", "cluster-info"), Data: test.data}, secrets: test.secrets, now: newYear}
		before := maps.Clone(test.data)
		plan := (&bootstrapSigner{}).Reconcile(v)
		if plan.IsEmpty() != (test.want == nil) {
			t.Errorf("%s: %+v", test.what, plan)
			continue
		}
		if !maps.Equal(test.data, before) {
			t.Errorf("%s: the map of the cache has changed", test.what)
		}
		if test.want == nil {
			continue
		}
		v.info = plan.Steps[0].Writes[0].Object.(*corev1.ConfigMap)
		if !maps.Equal(v.info.Data, test.want) {
			t.Errorf("%s: %v\nwant %v", test.what, v.info.Data, test.want)
		}
		if again := (&bootstrapSigner{}).Reconcile(v); !again.IsEmpty() {
			t.Errorf("%s: a second sync changes %+v", test.what, again)
		}
	}
}

func TestTokensArePast(t *testing.T) {
	for expiration, want := range map[string]struct {
		deleted bool
		again   time.Duration
	}{
		"":                          {false, 0},
		"2026-01-01T01:00:00Z":      {false, time.Hour},
		"2026-01-01T01:00:00+01:00": {true, 0},
		"2026-01-01T00:00:01Z":      {false, time.Second},
		"2026-01-01T00:00:00Z":      {true, 0},
		"2025-01-01T01:00:00Z":      {true, 0},
		"2026-01-01":                {true, 0},
		"nonsense":                  {true, 0},
	} {
		secret := bootstrapToken("aaaaaa", holding("expiration", expiration), func(s *corev1.Secret) { s.UID = "7" })
		plan := cleanToken(secret, newYear)
		if (len(plan.Steps) > 0) != want.deleted || plan.RequeueAfter != want.again {
			t.Errorf("%q: %+v", expiration, plan)
		}
		if want.deleted && *plan.Steps[0].Writes[0].DeleteOptions.Preconditions.UID != "7" {
			t.Errorf("%q: a successor is deleted", expiration)
		}
	}
}

// TestTokensInAWorld: a token signs until its end, and then both it and its signature are gone.
func TestTokensInAWorld(t *testing.T) {
	world.In(t, func(w *world.World) {
		world.Create(w, &corev1.Namespace{ObjectMeta: named("", "kube-public")})
		world.Create(w, &corev1.ConfigMap{ObjectMeta: named("kube-public", "cluster-info"), Data: map[string]string{"kubeconfig": "content"}})
		world.Create(w, &corev1.ConfigMap{ObjectMeta: named("default", "cluster-info"), Data: map[string]string{"kubeconfig": "another"}})
		defer w.Run(BootstrapSigner, BootstrapTokenCleaner)()
		world.Create(w, bootstrapToken("forevr"))
		world.Create(w, bootstrapToken("minute", until(time.Now().Add(time.Minute))))
		world.Create(w, bootstrapToken("broken", holding("expiration", "x")))
		elsewhere := world.Create(w, bootstrapToken("others", func(s *corev1.Secret) { s.Namespace = "default" }, until(time.Now().Add(-time.Hour))))
		for _, test := range []struct {
			pass    time.Duration
			signers string
			secrets int
		}{{time.Second, "forevr minute", 3}, {58 * time.Second, "forevr minute", 3}, {2 * time.Second, "forevr", 2}, {time.Hour, "forevr", 2}} {
			w.Pass(test.pass)
			info := world.Get[*corev1.ConfigMap](w, "kube-public", "cluster-info")
			var ids []string
			for _, id := range []string{"broken", "forevr", "minute", "others"} {
				if info.Data["jws-kubeconfig-"+id] == detachedSignature("content", id, "0123456789abcdef") {
					ids = append(ids, id)
				}
			}
			if got := strings.Join(ids, " "); got != test.signers || len(info.Data) != len(ids)+1 || len(world.List[*corev1.Secret](w)) != test.secrets {
				t.Errorf("signed by %s (%d keys), %d secrets; want %s, %d", got, len(info.Data), len(world.List[*corev1.Secret](w)), test.signers, test.secrets)
			}
		}
		if world.Gone[*corev1.Secret](w, "default", elsewhere.Name) || len(world.Get[*corev1.ConfigMap](w, "default", "cluster-info").Data) != 1 {
			t.Error("another namespace was touched")
		}
		world.Edit(w, "kube-public", "cluster-info", func(m *corev1.ConfigMap) { m.Data["kubeconfig"] = "other" })
		w.Pass(time.Second)
		if got := world.Get[*corev1.ConfigMap](w, "kube-public", "cluster-info").Data["jws-kubeconfig-forevr"]; got != detachedSignature("other", "forevr", "0123456789abcdef") {
			t.Errorf("the new content is signed %s", got)
		}
		w.Remove(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-forevr"}})
		w.Pass(time.Second)
		if data := world.Get[*corev1.ConfigMap](w, "kube-public", "cluster-info").Data; len(data) != 1 {
			t.Errorf("without tokens: %v", data)
		}
	})
}
