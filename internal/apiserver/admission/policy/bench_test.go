package policy_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/apiserver/admission"
)

// podSpecPolicies are typical validations of pods.
var podSpecPolicies = []string{
	`!has(object.spec.hostNetwork) || !object.spec.hostNetwork`,
	`object.spec.containers.all(c, !c.image.endsWith(':latest'))`,
	`object.spec.containers.all(c, has(c.resources) && has(c.resources.limits) ? 'memory' in c.resources.limits : true)`,
	`has(object.metadata.labels) && 'app' in object.metadata.labels`,
	`object.spec.containers.all(c, !has(c.securityContext) || !has(c.securityContext.privileged) || !c.securityContext.privileged)`,
}

func (s *server) createPolicies(n int, resource string) {
	for i := range n {
		s.validate(fmt.Sprintf("p%d", i), fmt.Sprintf("matchConstraints: {resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [%s]}]}\nvalidations: [{expression: %s, message: refused}]",
			resource, quote(podSpecPolicies[i%len(podSpecPolicies)])))
	}
}

// BenchmarkCreate creates pods as dry runs: with no policies, with twenty about another resource, and with twenty about pods.
func BenchmarkCreate(b *testing.B) {
	const pod = "metadata: {name: x, labels: {app: web}}\nspec: {containers: [{name: a, image: 'a:1', resources: {limits: {memory: 1Gi}}}, {name: b, image: 'b:1'}]}"
	for _, c := range []struct {
		name, resource string
		policies       int
	}{{"none", "", 0}, {"others", "services", 20}, {"pods", "pods", 20}} {
		b.Run(c.name, func(b *testing.B) {
			s := newServer(b)
			s.createPolicies(c.policies, c.resource)
			s.must("POST", "/api/v1/namespaces/team/pods?dryRun=All", pod)
			b.ReportAllocs()
			for b.Loop() {
				if r := s.as("admin", "POST", "/api/v1/namespaces/team/pods?dryRun=All", pod); r.code != 201 {
					b.Fatalf("%d %s", r.code, r.body)
				}
			}
		})
	}
}

// TestUnconcernedWrites: a write that no policy is about allocates nothing in the plugin, however many policies there are.
func TestUnconcernedWrites(t *testing.T) {
	s := newServer(t)
	s.createPolicies(20, "services")
	s.configMap("first", "") // reads the policies
	write := &admission.Attributes{Operation: admission.Create, Kind: corev1.SchemeGroupVersion.WithKind("Pod"), Resource: corev1.SchemeGroupVersion.WithResource("pods")}
	if s.validating.Handles(write) {
		t.Fatal("handled")
	}
	if allocations := testing.AllocsPerRun(100, func() { s.validating.Handles(write) }); allocations != 0 {
		t.Errorf("%v allocations", allocations)
	}
	write.Resource.Resource = "services"
	if !s.validating.Handles(write) {
		t.Error("not handled")
	}
}
