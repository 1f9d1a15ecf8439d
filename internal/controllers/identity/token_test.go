package identity

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/test/world"
)

// notary signs by writing down what it was asked.
type notary struct{ err error }

func (n notary) LegacyToken(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return account.Name + " " + secret.Name, n.err
}

func TestFill(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "robot", UID: "1"}}
	secret := func(pairs ...string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: named("work", "token")}
		for i := 0; i < len(pairs); i += 2 {
			if s.Data == nil {
				s.Data = map[string][]byte{}
			}
			s.Data[pairs[i]] = []byte(pairs[i+1])
		}
		return s
	}
	for _, test := range []struct {
		what   string
		rootCA string
		secret *corev1.Secret
		want   *corev1.Secret // nil: as it is
	}{
		{"empty", "ca", secret(), secret("token", "robot token", "namespace", "work", "ca.crt", "ca")},
		{"empty, nothing to publish", "", secret(), secret("token", "robot token", "namespace", "work")},
		{"full", "ca", secret("token", "t", "namespace", "n", "ca.crt", "ca"), nil},
		{"full, nothing to publish", "", secret("token", "t", "namespace", "n", "ca.crt", "old"), nil},
		{"another authority", "ca", secret("token", "t", "namespace", "n", "ca.crt", "old"), secret("token", "t", "namespace", "n", "ca.crt", "ca")},
		{"no authority", "ca", secret("token", "t", "namespace", "n"), secret("token", "t", "namespace", "n", "ca.crt", "ca")},
		{"no token", "", secret("namespace", "n"), secret("token", "robot token", "namespace", "n")},
		{"an empty token", "", secret("namespace", "n", "token", ""), secret("token", "robot token", "namespace", "n")},
		{"no namespace", "", secret("token", "t"), secret("token", "t", "namespace", "work")},
		{"another's data is kept", "", secret("mine", "x"), secret("mine", "x", "token", "robot token", "namespace", "work")},
	} {
		before := test.secret.DeepCopy()
		got, err := (&tokens{signer: notary{}, rootCA: []byte(test.rootCA)}).fill(test.secret, account)
		if test.want != nil {
			test.want.Annotations = map[string]string{corev1.ServiceAccountNameKey: "robot", corev1.ServiceAccountUIDKey: "1"}
		}
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, %v\nwant %+v", test.what, got, err, test.want)
		}
		if !reflect.DeepEqual(before, test.secret) {
			t.Errorf("%s: the secret of the cache has changed", test.what)
		}
	}
	if _, err := (&tokens{signer: notary{err: errors.New("no key")}}).fill(secret(), account); err == nil || err.Error() != "sign token: no key" {
		t.Errorf("a token that cannot be signed: %v", err)
	}
	if next, err := (&tokens{signer: notary{err: errors.New("no key")}}).fill(secret("token", "t"), account); err != nil || next == nil {
		t.Errorf("one that needs no token is not signed: %v", err)
	}
}

func TestTokensWithoutASignerAreOff(t *testing.T) {
	if d := Tokens(nil, nil); !d.DisabledByDefault {
		t.Error("they are on")
	} else if _, err := d.New(&controller.Setup{}); err == nil {
		t.Error("they start")
	}
	if Tokens(notary{}, nil).DisabledByDefault {
		t.Error("they are off")
	}
}

// TestSecretsOfAccounts plays what may happen to secrets and accounts.
func TestSecretsOfAccounts(t *testing.T) {
	token := func(name, account string, uid ...string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: named("default", name), Type: corev1.SecretTypeServiceAccountToken}
		s.Annotations = map[string]string{corev1.ServiceAccountNameKey: account}
		if len(uid) > 0 {
			s.Annotations[corev1.ServiceAccountUIDKey] = uid[0]
		}
		return s
	}
	robot := func(secrets ...string) *corev1.ServiceAccount {
		a := &corev1.ServiceAccount{ObjectMeta: named("default", "robot")}
		for _, name := range secrets {
			a.Secrets = append(a.Secrets, corev1.ObjectReference{Name: name})
		}
		return a
	}
	filled := func(w *world.World, name string) bool {
		s := world.Get[*corev1.Secret](w, "default", name)
		account := world.Get[*corev1.ServiceAccount](w, "default", "robot")
		return string(s.Data["token"]) == "robot "+name && string(s.Data["ca.crt"]) == "authority" && string(s.Data["namespace"]) == "default" && s.Annotations[corev1.ServiceAccountUIDKey] == string(account.UID)
	}
	gone := func(w *world.World, name string) bool { return world.Gone[*corev1.Secret](w, "default", name) }
	listed := func(w *world.World) (names []string) {
		for _, ref := range world.Get[*corev1.ServiceAccount](w, "default", "robot").Secrets {
			names = append(names, ref.Name)
		}
		return names
	}
	for _, test := range []struct {
		what string
		play func(w *world.World)
		want func(w *world.World) bool
	}{
		{"a secret by hand is filled", func(w *world.World) { world.Create(w, robot()); world.Create(w, token("t", "robot")) }, func(w *world.World) bool { return filled(w, "t") }},
		{"with the account's uid", func(w *world.World) { world.Create(w, token("t", "robot", string(world.Create(w, robot()).UID))) }, func(w *world.World) bool { return filled(w, "t") }},
		{"with another's uid it goes", func(w *world.World) { world.Create(w, robot()); world.Create(w, token("t", "robot", "other")) }, func(w *world.World) bool { return gone(w, "t") }},
		{"of an account that is not there it goes", func(w *world.World) { world.Create(w, token("t", "stranger")) }, func(w *world.World) bool { return gone(w, "t") }},
		{"secrets of other types are nobody's", func(w *world.World) {
			s := token("t", "stranger")
			s.Type = corev1.SecretTypeOpaque
			world.Create(w, s)
		}, func(w *world.World) bool { return !gone(w, "t") }},
		{"when its account goes, it goes", func(w *world.World) {
			a := world.Create(w, robot())
			world.Create(w, token("t", "robot"))
			w.Pass(time.Second)
			w.Remove(a)
		}, func(w *world.World) bool { return gone(w, "t") }},
		{"a successor of the account does not keep it", func(w *world.World) {
			a := world.Create(w, robot())
			world.Create(w, token("t", "robot"))
			w.Pass(time.Second)
			w.Remove(a)
			world.Create(w, robot())
		}, func(w *world.World) bool { return gone(w, "t") }},
		{"somebody empties it", func(w *world.World) {
			world.Create(w, robot())
			world.Create(w, token("t", "robot"))
			w.Pass(time.Second)
			world.Edit(w, "default", "t", func(s *corev1.Secret) { delete(s.Data, "token"); s.Data["ca.crt"] = []byte("x") })
		}, func(w *world.World) bool { return filled(w, "t") }},
		{"a secret that goes is taken from its account's list", func(w *world.World) {
			world.Create(w, robot("other", "t"))
			made := world.Create(w, token("t", "robot"))
			w.Pass(time.Second)
			w.Remove(made)
		}, func(w *world.World) bool { return slices.Equal(listed(w), []string{"other"}) }},
		{"a secret that goes and is not on the list", func(w *world.World) {
			world.Create(w, robot("other"))
			made := world.Create(w, token("t", "robot"))
			w.Pass(time.Second)
			w.Remove(made)
		}, func(w *world.World) bool { return slices.Equal(listed(w), []string{"other"}) }},
		{"a successor of the account keeps its own list", func(w *world.World) {
			a := world.Create(w, robot("t"))
			world.Create(w, token("t", "robot"))
			w.Pass(time.Second)
			w.Remove(a)
			world.Create(w, robot("t"))
		}, func(w *world.World) bool { return gone(w, "t") && slices.Equal(listed(w), []string{"t"}) }},
		{"a secret that is another type's is on a list and goes", func(w *world.World) {
			world.Create(w, robot("t"))
			s := token("t", "robot")
			s.Type = corev1.SecretTypeOpaque
			w.Remove(world.Create(w, s))
		}, func(w *world.World) bool { return slices.Equal(listed(w), []string{"t"}) }},
	} {
		t.Run(test.what, func(t *testing.T) {
			world.In(t, func(w *world.World) {
				definition := Tokens(notary{}, []byte("authority"))
				stop := w.Run(definition)
				test.play(w)
				w.Pass(5 * time.Second)
				if !test.want(w) {
					t.Errorf("secrets %v, accounts %v", world.List[*corev1.Secret](w), world.List[*corev1.ServiceAccount](w))
				}
				stop()
				w.AssertSettled(definition)
			})
		})
	}
}

// TestKeysOfSecretsThatAreGone: which account a secret was of is all that is known of it.
func TestKeysOfSecretsThatAreGone(t *testing.T) {
	for _, test := range []struct {
		what        string
		annotations map[string]string
		want        string
	}{
		{"name and uid", map[string]string{corev1.ServiceAccountNameKey: "robot", corev1.ServiceAccountUIDKey: "1"}, "forget/robot/1/token"},
		{"no uid", map[string]string{corev1.ServiceAccountNameKey: "robot"}, "forget/robot//token"},
		{"nothing", nil, "forget///token"},
	} {
		key := forgetting(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "work", Name: "token", Annotations: test.annotations}})
		if key.Namespace != "work" || key.Name != test.want {
			t.Errorf("%s: %v, want %s", test.what, key, test.want)
		}
	}
}

// TestForgottenSecrets: an account's list loses a secret that is gone, and nothing else is touched.
func TestForgottenSecrets(t *testing.T) {
	for _, test := range []struct {
		what   string
		has    []string
		uid    string // "own" is the account's
		secret string
		there  bool // the secret is, again
		want   []string
	}{
		{"the only one", []string{"t"}, "own", "t", false, nil},
		{"one of three", []string{"a", "t", "b"}, "own", "t", false, []string{"a", "b"}},
		{"twice on the list", []string{"t", "a", "t"}, "own", "t", false, []string{"a"}},
		{"not on the list", []string{"a"}, "own", "t", false, []string{"a"}},
		{"an empty list", nil, "own", "t", false, nil},
		{"without a uid", []string{"t"}, "", "t", false, nil},
		{"of another account", []string{"t"}, "other", "t", false, []string{"t"}},
		{"it is there again", []string{"t"}, "own", "t", true, []string{"t"}},
		{"part of another's name", []string{"token"}, "own", "t", false, []string{"token"}},
	} {
		world.In(t, func(w *world.World) {
			account := &corev1.ServiceAccount{ObjectMeta: named("default", "robot")}
			for _, name := range test.has {
				account.Secrets = append(account.Secrets, corev1.ObjectReference{Name: name})
			}
			made := world.Create(w, account)
			if test.there {
				world.Create(w, &corev1.Secret{ObjectMeta: named("default", test.secret)})
			}
			var c *tokens
			stop := w.Run(controller.Definition{Name: "tokens", New: func(s *controller.Setup) (controller.Syncer, error) {
				c = &tokens{setup: s, accounts: client.InformerFor[*corev1.ServiceAccount](s.Informers), secrets: client.InformerFor[*corev1.Secret](s.Informers)}
				return c, nil
			}})
			defer stop()
			uid := types.UID(test.uid)
			if uid == "own" {
				uid = made.UID
			}
			for _, name := range []string{"robot", "nobody"} {
				if err := c.forget(w.Ctx, "default", name, uid, test.secret); err != nil {
					t.Errorf("%s: %v", test.what, err)
				}
			}
			var got []string
			for _, ref := range world.Get[*corev1.ServiceAccount](w, "default", "robot").Secrets {
				got = append(got, ref.Name)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("%s: %v, want %v", test.what, got, test.want)
			}
		})
	}
}
