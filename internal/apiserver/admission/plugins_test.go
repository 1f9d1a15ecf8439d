package admission

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func ruleNames(c Chain) (names []string) {
	for _, r := range c {
		names = append(names, r.Name())
	}
	return names
}

// TestOrder pins the order: ResourceQuota must be last, and each plugin must be listed under its own name.
func TestOrder(t *testing.T) {
	names, on := Names()
	if names[0] != "NamespaceLifecycle" || names[len(names)-1] != "ResourceQuota" {
		t.Errorf("order %v", names)
	}
	var byDefault []string
	for i, name := range names {
		if on[i] {
			byDefault = append(byDefault, name)
		}
	}
	extensions := map[string]Plugin{}
	for _, name := range []string{"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook"} {
		extensions[name] = standIn{name: name}
	}
	if got := ruleNames(mustList(t, Options{Extensions: extensions})); !slices.Equal(got, byDefault) {
		t.Errorf("enabled by default:\n%v\nwant:\n%v", got, byDefault)
	}
	off := []string{"AlwaysPullImages", "PodNodeSelector", "EventRateLimit", "ExtendedResourceToleration", "OwnerReferencesPermissionEnforcement"}
	for _, name := range off {
		if slices.Contains(byDefault, name) {
			t.Errorf("%s is enabled", name)
		}
	}
	for _, e := range all {
		r, err := e.make(&Options{Client: newWorld().env, Authorizer: allow{}, Extensions: extensions}, &config{})
		if err == nil && r.Name() != e.name {
			t.Errorf("%s is listed as %s", r.Name(), e.name)
		}
		if err == nil {
			if _, mutates := r.(Mutator); !mutates {
				if _, validates := r.(Validator); !validates {
					t.Errorf("%s does nothing", e.name)
				}
			}
		}
	}
}

func TestEnableAndDisable(t *testing.T) {
	got := ruleNames(mustList(t, Options{Enable: []string{"AlwaysPullImages"}, Disable: []string{"DenyServiceExternalIPs", "EventRateLimit"}}))
	if !slices.Contains(got, "AlwaysPullImages") || slices.Contains(got, "DenyServiceExternalIPs") {
		t.Errorf("got %v", got)
	}
	for _, bad := range []struct {
		o    Options
		want string
	}{
		{Options{Enable: []string{"Nonsense"}}, `enable-admission-plugins plugin "Nonsense" is unknown`},
		{Options{Disable: []string{"Nonsense"}}, `disable-admission-plugins plugin "Nonsense" is unknown`},
		{Options{Enable: []string{"Priority"}, Disable: []string{"Priority"}}, "overlapped"},
		{Options{Enable: []string{"OwnerReferencesPermissionEnforcement"}}, "no resources to look up owners in"},
		{Options{Enable: []string{"EventRateLimit"}}, "must not be empty"},
	} {
		bad.o.Client, bad.o.Authorizer = newWorld().env, allow{}
		if _, err := List(bad.o); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("got %v, want %s", err, bad.want)
		}
	}
	if _, err := List(Options{}); err == nil {
		t.Error("plugins without access to objects")
	}
}

func TestConfig(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file("limits.yaml", "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits:\n- {type: Server, qps: 1, burst: 2}\n")
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n"
	c, err := readConfig(file("good.yaml", head+`
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline, enforce-version: v1.30}
    exemptions: {namespaces: [kube-system]}
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes: [{scopeName: PriorityClass, operator: In, values: [high]}]
- name: EventRateLimit
  path: limits.yaml
- name: PodNodeSelector
  configuration: {podNodeSelectorPluginConfig: {clusterDefaultNodeSelector: "a=b"}}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.podSecurity.policy.Enforce.String(); got != "baseline:v1.30" {
		t.Errorf("enforces %s", got)
	}
	if got := c.podSecurity.policy.Warn.String(); got != "privileged:latest" {
		t.Errorf("warns of %s", got)
	}
	if len(c.quota.LimitedResources) != 1 || c.quota.LimitedResources[0].MatchScopes[0].Values[0] != "high" ||
		len(c.eventLimits.Limits) != 1 || c.nodeSelector.Selectors[clusterDefaultSelector] != "a=b" {
		t.Errorf("read %+v", c)
	}
	for name, bad := range map[string]struct{ content, want string }{
		"kind":    {"apiVersion: v1\nkind: Pod\n", "not an AdmissionConfiguration"},
		"plugin":  {head + "- name: Priority\n", `"Priority" has nothing to configure`},
		"field":   {head + "- name: PodSecurity\n  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforced: baseline}}\n", `unknown field "defaults.enforced"`},
		"again":   {head + "- name: PodSecurity\n  name: PodSecurity\n", `key "name" already set in map`},
		"inner":   {head + "- name: PodSecurity\n  configuration: {apiVersion: v1, kind: PodSecurityConfiguration}\n", "unknown kind"},
		"level":   {head + "- name: PodSecurity\n  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, defaults: {enforce: strict}}\n", "must be one of privileged, baseline, restricted"},
		"twice":   {head + "- name: PodSecurity\n  configuration: {apiVersion: pod-security.admission.config.k8s.io/v1, kind: PodSecurityConfiguration, exemptions: {namespaces: [a, a]}}\n", "Duplicate value"},
		"doubled": {head + "- {name: PodNodeSelector}\n- {name: PodNodeSelector}\n", `"PodNodeSelector" is configured twice`},
		"no file": {head + "- {name: PodSecurity, path: missing.yaml}\n", "missing.yaml"},
	} {
		if _, err := readConfig(file("bad.yaml", bad.content)); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: got %v, want %s", name, err, bad.want)
		}
	}
	options := Options{Client: newWorld().env, Authorizer: allow{}, ConfigFile: file("disabled.yaml", head+"- {name: EventRateLimit, path: limits.yaml}\n")}
	if _, err := List(options); err == nil || !strings.Contains(err.Error(), `"EventRateLimit" is configured but not enabled`) {
		t.Errorf("configuration of a plugin that is not enabled: %v", err)
	}
	options.Enable = []string{"EventRateLimit"}
	if _, err := List(options); err != nil {
		t.Error(err)
	}
	if _, err := readConfig(filepath.Join(dir, "absent")); err == nil {
		t.Error("a file that does not exist was read")
	}
}

// TestChainUndoes: a reservation is undone when a later plugin rejects the write.
func TestChainUndoes(t *testing.T) {
	w := newWorld(newQuota("q", "pods=5", "pods=1"))
	quotas := newResourceQuota(w.env, nil)
	refuse := refusing{}
	a := creating(pod())
	if err := (Chain{quotas, refuse}).Validate(context.Background(), a); err == nil {
		t.Fatal("admitted")
	}
	if got := w.used("q"); got != "pods=1" {
		t.Errorf("used %s", got)
	}
}

type refusing struct{}

func (refusing) Name() string                                { return "refusing" }
func (refusing) Handles(*Attributes) bool                    { return true }
func (refusing) Validate(context.Context, *Attributes) error { return errors.New("no") }

// standIn is a plugin of another package.
type standIn struct {
	refusing
	name string
}

func (s standIn) Name() string { return s.name }

// TestMutateCopies: plugins copy maps and pointers of other objects into the written one.
func TestMutateCopies(t *testing.T) {
	w := fullWorld()
	chain := mustList(t, Options{Client: w.env})
	first := pod(func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr("sandboxed") })
	if err := chain.Mutate(context.Background(), creating(first)); err != nil {
		t.Fatal(err)
	}
	for key := range first.Spec.NodeSelector {
		first.Spec.NodeSelector[key] = "spoiled"
	}
	first.Spec.Overhead["cpu"] = amounts("cpu=99")["cpu"]
	for i := range first.Spec.Tolerations {
		*first.Spec.Tolerations[i].TolerationSeconds = 1
	}
	*first.Spec.Priority = 99
	first.Spec.Containers[0].Resources.Requests["cpu"] = amounts("cpu=99")["cpu"]
	first.Spec.ImagePullSecrets[0].Name = "spoiled"
	second := pod(func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr("sandboxed") })
	if err := chain.Mutate(context.Background(), creating(second)); err != nil {
		t.Fatal(err)
	}
	if second.Spec.NodeSelector["sandbox"] != "yes" || second.Spec.Overhead.Cpu().String() != "250m" || *second.Spec.Priority != 7 ||
		second.Spec.Containers[0].Resources.Requests.Cpu().String() != "100m" || second.Spec.ImagePullSecrets[0].Name != "registry" ||
		*second.Spec.Tolerations[1].TolerationSeconds == 1 {
		t.Errorf("got %+v", second.Spec)
	}
}

// FuzzHandles: Handles does not panic for any combination of names.
func FuzzHandles(f *testing.F) {
	f.Add("", "pods", "ephemeralcontainers", "UPDATE", "team")
	f.Add("certificates.k8s.io", "certificatesigningrequests", "approval", "CREATE", "")
	chain := Chain{}
	for _, e := range all {
		c := &config{}
		if r, err := e.make(&Options{Client: newWorld().env, Authorizer: allow{}}, c); err == nil && r != nil {
			chain = append(chain, r)
		}
	}
	f.Fuzz(func(t *testing.T, group, resource, subresource, operation, namespace string) {
		a := creating(pod())
		a.Resource.Group, a.Resource.Resource, a.Subresource, a.Operation, a.Namespace = group, resource, subresource, Operation(operation), namespace
		a.Object = nil
		for _, r := range chain {
			if r.Name() == "ServiceAccount" {
				continue // it waits for the default account
			}
			if r.Handles(a) {
				_ = chain[:0].Mutate(context.Background(), a)
				if m, ok := r.(Mutator); ok {
					_ = m.Mutate(context.Background(), a)
				}
				if v, ok := r.(Validator); ok {
					_ = v.Validate(context.Background(), a)
				}
			}
		}
	})
}
