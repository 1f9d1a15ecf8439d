package identity

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/test/inprocess"
)

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func TestEveryNamespaceHasAnAccountAndTheAuthority(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, ServiceAccount, RootCA([]byte("authority")))
	published := func(m *corev1.ConfigMap) bool {
		return m.Data["ca.crt"] == "authority" && len(m.Data) == 1 && m.Annotations[descriptionAnnotation] == rootCADescription
	}
	anything := func(*corev1.ServiceAccount) bool { return true }
	await(t, c, "default", "default", anything)
	create(t, c, &corev1.Namespace{ObjectMeta: named("", "work")})
	account := await(t, c, "work", "default", anything)
	m := await(t, c, "work", rootCAName, published)

	changed := m.DeepCopy()
	changed.Data = map[string]string{"ca.crt": "another", "more": "x"}
	changed.Annotations["mine"] = "kept"
	update(t, c, changed, "")
	m = await(t, c, "work", rootCAName, published)
	if m.Annotations["mine"] != "kept" {
		t.Error("annotations of others are lost")
	}
	if err := client.For[*corev1.ConfigMap](c).Delete(t.Context(), "work", rootCAName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, c, "work", rootCAName, published)
	if err := client.For[*corev1.ServiceAccount](c).Delete(t.Context(), "work", "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, c, "work", "default", func(again *corev1.ServiceAccount) bool { return again.UID != account.UID })
}

func TestNothingIsMadeInANamespaceThatEnds(t *testing.T) {
	ending := &corev1.Namespace{ObjectMeta: named("", "work"), Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating}}
	if plan := (&accounts{}).Reconcile(accountView{namespace: ending}); !plan.Empty() {
		t.Errorf("%+v", plan)
	}
	if plan := (&rootCA{bundle: "x"}).Reconcile(rootCAView{namespace: ending}); !plan.Empty() {
		t.Errorf("%+v", plan)
	}
}

// notary signs by writing down what it was asked.
type notary struct{ err error }

func (n notary) LegacyToken(account *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	return account.Name + " " + string(account.UID) + " " + secret.Name, n.err
}

func TestTokens(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, Tokens(notary{}, []byte("authority")))
	account := create(t, c, &corev1.ServiceAccount{ObjectMeta: named("default", "robot"), Secrets: []corev1.ObjectReference{{Name: "other"}, {Name: "token"}}})
	of := func(name, account string) *corev1.Secret {
		secret := &corev1.Secret{ObjectMeta: named("default", name), Type: corev1.SecretTypeServiceAccountToken}
		secret.Annotations = map[string]string{corev1.ServiceAccountNameKey: account}
		return secret
	}
	create(t, c, of("token", "robot"))
	await(t, c, "default", "token", func(s *corev1.Secret) bool {
		return string(s.Data["token"]) == "robot "+string(account.UID)+" token" && string(s.Data["ca.crt"]) == "authority" &&
			string(s.Data["namespace"]) == "default" && s.Annotations[corev1.ServiceAccountUIDKey] == string(account.UID)
	})
	create(t, c, of("nobodys", "stranger"))
	awaitGone[*corev1.Secret](t, c, "default", "nobodys")

	if err := client.For[*corev1.Secret](c).Delete(t.Context(), "default", "token", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, c, "default", "robot", func(a *corev1.ServiceAccount) bool { return len(a.Secrets) == 1 && a.Secrets[0].Name == "other" })

	create(t, c, of("second", "robot"))
	await(t, c, "default", "second", func(s *corev1.Secret) bool { return len(s.Data["token"]) > 0 })
	if err := client.For[*corev1.ServiceAccount](c).Delete(t.Context(), "default", "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitGone[*corev1.Secret](t, c, "default", "second")
}

func TestFill(t *testing.T) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot", UID: "1"}}
	full := &corev1.Secret{ObjectMeta: named("default", "token"), Data: map[string][]byte{"token": []byte("t"), "namespace": []byte("n"), "ca.crt": []byte("old")}}
	c := &tokens{signer: notary{}}
	if next, err := c.fill(full, account); next != nil || err != nil {
		t.Errorf("a full secret is changed: %v, %v", next, err)
	}
	c.rootCA = []byte("new")
	next, err := c.fill(full, account)
	if err != nil || string(next.Data["ca.crt"]) != "new" || string(next.Data["token"]) != "t" || string(full.Data["ca.crt"]) != "old" {
		t.Errorf("%v, %v", next, err)
	}
	c.signer = notary{err: errors.New("no key")}
	if _, err := c.fill(&corev1.Secret{}, account); err == nil {
		t.Error("a token that cannot be signed is no error")
	}
}

func TestRolesAreAggregated(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	run(t, c, ClusterRoleAggregation)
	rule := func(resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}}}
	}
	create(t, c, &rbacv1.ClusterRole{ObjectMeta: named("", "all"), AggregationRule: &rbacv1.AggregationRule{
		ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"into": "all"}}}}})
	for _, resource := range []string{"pods", "nodes"} {
		role := &rbacv1.ClusterRole{ObjectMeta: named("", resource), Rules: rule(resource)}
		role.Labels = map[string]string{"into": "all"}
		create(t, c, role)
	}
	resources := func(want ...string) func(*rbacv1.ClusterRole) bool {
		return func(role *rbacv1.ClusterRole) bool {
			if len(role.Rules) != len(want) {
				return false
			}
			for i := range want {
				if role.Rules[i].Resources[0] != want[i] {
					return false
				}
			}
			return true
		}
	}
	await(t, c, "", "all", resources("nodes", "pods"))
	if err := client.For[*rbacv1.ClusterRole](c).Delete(t.Context(), "", "nodes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	role := await(t, c, "", "all", resources("pods"))
	time.Sleep(100 * time.Millisecond)
	if again, err := client.For[*rbacv1.ClusterRole](c).Get(t.Context(), "", "all"); err != nil || again.ResourceVersion != role.ResourceVersion {
		t.Errorf("the role does not come to rest: %v", err)
	}
}
