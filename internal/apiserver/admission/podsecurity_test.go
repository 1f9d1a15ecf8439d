package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	psapi "k8s.io/pod-security-admission/api"
)

func privileged(p *corev1.Pod) {
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr(true)}
}

func security(t *testing.T, w *world, change ...func(*podSecurityConfig)) *podSecurity {
	t.Helper()
	var c podSecurityConfig
	for _, f := range change {
		f(&c)
	}
	if err := c.complete(); err != nil {
		t.Fatal(err)
	}
	r, err := newPodSecurity(w.env, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func in(ns string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Namespace = ns } }

func TestPodSecurity(t *testing.T) {
	w := newWorld(namespace("open"), namespace("base", psapi.EnforceLevelLabel, "baseline"),
		namespace("warned", psapi.WarnLevelLabel, "restricted", psapi.AuditLevelLabel, "baseline"), namespace("broken", psapi.EnforceLevelLabel, "nonsense"))
	exempt := func(c *podSecurityConfig) {
		c.Exemptions.Usernames, c.Exemptions.RuntimeClasses = []string{"trusted"}, []string{"vm"}
	}
	r := security(t, w, exempt)
	secret := `violates PodSecurity "baseline:latest": privileged (container "main" must not set securityContext.privileged=true)`
	debug := func(p *corev1.Pod) {
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
			Name: "debug", SecurityContext: &corev1.SecurityContext{Privileged: ptr(true)},
		}}}
	}
	for name, c := range map[string]struct {
		a        *Attributes
		want     string
		warnings int
	}{
		"open": {creating(pod(in("open"), privileged)), "", 0},
		"good": {creating(pod(in("base"))), "", 0},
		"bad":  {creating(pod(in("base"), privileged)), `pods "web" is forbidden: ` + secret, 0},
		"bad init container": {creating(pod(in("base"), everyKind, func(p *corev1.Pod) {
			p.Spec.InitContainers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr(true)}
		})), `container "prepare" must not set`, 0},
		"bad debug container":  {updating(pod(in("base")), pod(in("base"), debug), sub("ephemeralcontainers")), `container "debug" must not set`, 0},
		"unknown subresource":  {updating(pod(in("base")), pod(in("base"), func(p *corev1.Pod) { privileged(p); p.Spec.Containers[0].Image = "new" }), sub("future")), secret, 0},
		"new image":            {updating(pod(in("base"), privileged), pod(in("base"), privileged, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "new" })), secret, 0},
		"nothing new":          {updating(pod(in("base"), privileged), pod(in("base"), privileged)), "", 0},
		"status":               {updating(pod(in("base")), pod(in("base"), privileged), sub("status")), unhandled, 0},
		"binding":              {creating(pod(in("base")), sub("binding")), unhandled, 0},
		"resize":               {updating(pod(in("base"), privileged), pod(in("base"), privileged), sub("resize")), "", 0},
		"deletion":             {write(Delete, pod(in("base"), privileged)), unhandled, 0},
		"exempt user":          {creating(pod(in("base"), privileged), by("trusted")), "", 0},
		"exempt runtime":       {creating(pod(in("base"), privileged, func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr("vm") })), "", 0},
		"warned":               {creating(pod(in("warned"), privileged)), "", 1},
		"labels are nonsense":  {creating(pod(in("broken"))), `violates PodSecurity "restricted:latest"`, 0},
		"namespace is missing": {creating(pod(in("nowhere"))), `failed to lookup namespace "nowhere"`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var warnings []string
			c.a.Warn = func(text string) { warnings = append(warnings, text) }
			want(t, try(r, c.a), c.want)
			if len(warnings) != c.warnings {
				t.Errorf("warnings %v", warnings)
			}
		})
	}
}

func TestPodSecurityPodTemplates(t *testing.T) {
	w := newWorld(namespace("base", psapi.EnforceLevelLabel, "baseline"))
	r := security(t, w)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Namespace: "base"}}
	deployment.Spec.Template.Spec = pod(privileged).Spec
	a := creating(pod(in("base")))
	a.Object, a.Resource = deployment, appsv1.SchemeGroupVersion.WithResource("deployments")
	var warnings []string
	a.Warn = func(text string) { warnings = append(warnings, text) }
	want(t, try(r, a), "")
	// The enforced level is also warned of.
	if len(warnings) != 1 || !strings.Contains(warnings[0], `would violate PodSecurity "baseline:latest": privileged`) {
		t.Errorf("warnings %q", warnings)
	}
	a.Subresource = "scale"
	want(t, try(r, a), unhandled)
}

func TestPodSecurityNamespaces(t *testing.T) {
	owned := func(name, owner string) *corev1.Pod {
		return pod(in("team"), privileged, func(p *corev1.Pod) {
			p.Name = name
			p.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(owner), Controller: ptr(true)}}
		})
	}
	w := newWorld(pod(in("team"), privileged), owned("b", "rs"), owned("a", "rs"), pod(in("team"), func(p *corev1.Pod) { p.Name = "fine" }))
	r := security(t, w, func(c *podSecurityConfig) { c.Exemptions.Namespaces = []string{"kube-system"} })
	plain, strict := namespace("team"), namespace("team", psapi.EnforceLevelLabel, "baseline")
	bad := namespace("team", psapi.EnforceLevelLabel, "strict")
	for name, c := range map[string]struct {
		a        *Attributes
		want     string
		warnings []string
	}{
		"create":      {creating(strict), "", nil},
		"create bad":  {creating(bad), `metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "strict": must be one of privileged, baseline, restricted`, nil},
		"raise":       {updating(plain, strict), "", []string{`existing pods in namespace "team" violate the new PodSecurity enforce level "baseline:latest"`, "a (and 2 other pods): privileged"}},
		"lower":       {updating(strict, plain), "", nil},
		"stay bad":    {updating(bad, bad.DeepCopy()), "", nil},
		"become bad":  {updating(plain, bad), "must be one of", nil},
		"subresource": {updating(plain, strict, sub("finalize")), unhandled, nil},
		"exempt":      {creating(namespace("kube-system", psapi.EnforceLevelLabel, "baseline")), "", []string{`namespace "kube-system" is exempt from Pod Security, and the policy (enforce=baseline:latest) will be ignored`}},
	} {
		t.Run(name, func(t *testing.T) {
			var warnings []string
			c.a.Warn = func(text string) { warnings = append(warnings, text) }
			want(t, try(r, c.a), c.want)
			if !slices.Equal(warnings, c.warnings) {
				t.Errorf("warnings %q", warnings)
			}
		})
	}
	if err := r.Validate(context.Background(), creating(bad)); !apierrors.IsInvalid(err) {
		t.Errorf("got %v", err)
	}
	for i := range 3 {
		w.put(owned(fmt.Sprint("more", i), "rs"))
	}
	if got := r.violations(context.Background(), "team", psapi.LevelVersion{Level: psapi.LevelBaseline, Version: psapi.LatestVersion()}); len(got) != 2 || got[1] != "a (and 5 other pods): privileged" {
		t.Errorf("got %q", got)
	}
}
