package node

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"skiff/internal/webhook/webhooktest"
	"skiff/test/cluster"
)

// website is what the tests read of a Website of the version v1.
type website struct {
	Metadata struct {
		UID        string
		Generation int64
		Finalizers []string
	}
	Spec struct {
		Page     struct{ Title, Text string }
		Replicas int
	}
	Status struct {
		Conditions []struct {
			Type, Status       string
			ObservedGeneration int64
		}
	}
}

// operatorTest is a cluster with the operator of test/operator.
type operatorTest struct {
	*testing.T
	c *cluster.Cluster
}

// TestOperator installs an operator made with controller-runtime and uses it: versions with a conversion webhook, admission webhooks, owned
// objects, conditions, a finalizer, and the failure of its leader. Each stage starts from the result of the previous one.
func TestOperator(t *testing.T) {
	c, err := cluster.SkiffNode(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	o := &operatorTest{T: t, c: c}
	for _, stage := range []struct {
		name string
		run  func(*operatorTest)
	}{
		{"install", (*operatorTest).install}, {"versions", (*operatorTest).versions}, {"invalid", (*operatorTest).invalid}, {"owned objects", (*operatorTest).owned},
		{"update", (*operatorTest).update}, {"delete", (*operatorTest).delete}, {"the leader fails", (*operatorTest).failLeader},
		{"uninstall", (*operatorTest).uninstall},
	} {
		if !t.Run(stage.name, func(t *testing.T) {
			on := *o
			on.T = t
			stage.run(&on)
		}) {
			t.Fatalf("the pods are\n%s\nthe operator's log\n%s\nthe server's log ends\n%s", kubectl(t, c, "", "get", "pods", "-A", "-o", "wide"),
				kubectl(t, c, "", "logs", "--namespace=operator", "--selector=app=operator", "--prefix", "--tail=20"), c.Server[0].Log(20))
		}
	}
}

// run runs kubectl as the administrator.
func (o *operatorTest) run(args ...string) string {
	o.Helper()
	return kubectl(o.T, o.c, "", args...)
}

// get reads an object with kubectl.
func (o *operatorTest) get(into any, args ...string) {
	o.Helper()
	if err := json.Unmarshal([]byte(o.run(append([]string{"get", "-o", "json"}, args...)...)), into); err != nil {
		o.Fatal(err)
	}
}

// refused checks that kubectl fails with a message.
func (o *operatorTest) refused(want, input string, args ...string) {
	o.Helper()
	if out, err := kubectlCommand(o.c, input, args...); err == nil || !strings.Contains(string(out), want) {
		o.Errorf("kubectl %s: %v\n%s\nwant %q", strings.Join(args, " "), err, out, want)
	}
}

// install imports the operator's image and applies its manifest, with certificates for its Service.
func (o *operatorTest) install() {
	root, err := cluster.Root()
	if err != nil {
		o.Fatal(err)
	}
	archive, err := cluster.Operator()
	if err != nil {
		o.Fatal(err)
	}
	importing := exec.Command(filepath.Join(root, "bin/skiff"), "image", "--data-dir", filepath.Join(o.c.Dir, "data"), "import", archive)
	if out, err := importing.CombinedOutput(); err != nil {
		o.Fatalf("skiff image import: %v\n%s", err, out)
	}
	manifest, err := os.ReadFile(filepath.Join(root, "test/operator/install.yaml"))
	if err != nil {
		o.Fatal(err)
	}
	ca := webhooktest.NewCA(o.T)
	certificate, key := ca.Issue("operator.operator.svc")
	encode := base64.StdEncoding.EncodeToString
	text := strings.NewReplacer("CA_BUNDLE", encode(ca.Bundle), "CERTIFICATE", encode(certificate), "KEY", encode(key)).Replace(string(manifest))
	kubectl(o.T, o.c, text, "apply", "-f", "-")
	o.run("wait", "--for=condition=Established", "crd/websites.web.example.com", "--timeout=30s")
	o.run("rollout", "status", "deployment/operator", "--namespace=operator", "--timeout=120s")
}

const oldWebsite = `
apiVersion: web.example.com/v1alpha1
kind: Website
metadata: {name: hello}
spec: {text: "Hello\nfrom the first version"}
`

// versions creates a Website of the old version. The webhooks are registered for the new one, which it is converted to for them and in the store.
func (o *operatorTest) versions() {
	// The pods are ready; the node's Service proxy may still be about to learn it.
	eventually(o.T, "the Website is created", func() bool {
		out, err := kubectlCommand(o.c, oldWebsite, "create", "-f", "-")
		if err != nil && !strings.Contains(string(out), "failed calling webhook") && !strings.Contains(string(out), "conversion webhook") {
			o.Fatalf("create: %v\n%s", err, out)
		}
		return err == nil
	})
	var w website
	o.get(&w, "websites.v1.web.example.com", "hello")
	if w.Spec.Page.Title != "Hello" || w.Spec.Page.Text != "from the first version" || w.Spec.Replicas != 1 {
		o.Errorf("as v1 it is %+v, want title and text apart and one replica by default", w.Spec)
	}
	var old struct {
		Spec struct {
			Text string
			Size int
		}
	}
	warning, text, _ := strings.Cut(o.run("get", "websites.v1alpha1.web.example.com", "hello", "-o", "json"), "\n")
	if warning != "Warning: web.example.com/v1alpha1 Website is deprecated; use web.example.com/v1 Website" {
		o.Errorf("no warning of the deprecated version, but %q", warning)
	}
	if err := json.Unmarshal([]byte(text), &old); err != nil {
		o.Fatal(err)
	}
	if old.Spec.Text != "Hello\nfrom the first version" || old.Spec.Size != 1 {
		o.Errorf("as v1alpha1 it is %+v", old.Spec)
	}
	if stored := o.run("get", "crd", "websites.web.example.com", "-o", "jsonpath={.status.storedVersions}"); stored != `["v1"]` {
		o.Errorf("stored versions are %s", stored)
	}
}

// invalid writes what the schema and the validating webhook refuse, in both versions.
func (o *operatorTest) invalid() {
	const v1 = "{apiVersion: web.example.com/v1, kind: Website, metadata: {name: %s}, spec: {page: {title: %s, text: %s}, replicas: %d}}"
	const tooMany = `The Website "%s" is invalid: spec.replicas: Invalid value: 7: a website has at most 3 replicas`
	o.refused(fmt.Sprintf(tooMany, "many"), fmt.Sprintf(v1, "many", "Many", "x", 7), "create", "-f", "-")
	o.refused(fmt.Sprintf(tooMany, "hello"), strings.Replace(oldWebsite, "spec: {", "spec: {size: 7, ", 1), "replace", "-f", "-")
	apply := []string{"apply", "--server-side", "--dry-run=server", "-f", "-"}
	o.refused(`conflict with "kubectl-create" using web.example.com/v1alpha1: .spec.text`, fmt.Sprintf(v1, "hello", "Hello", "x", 7), apply...)
	o.refused(fmt.Sprintf(tooMany, "hello"), fmt.Sprintf(v1, "hello", "Hello", "x", 7), append(apply, "--force-conflicts")...)
	o.refused(`admission webhook "validate.web.example.com" denied the request: the title of a website cannot be changed`, "",
		"patch", "website", "hello", "--type=merge", "-p", `{"spec":{"page":{"title":"Bye"}}}`)
	o.refused("spec.page.text: Too long: may not be more than 1000 bytes", fmt.Sprintf(v1, "long", "Long", strings.Repeat("x", 1001), 1), "create", "-f", "-")
	o.refused("spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0", fmt.Sprintf(v1, "few", "Few", "x", -1), "create", "-f", "-")
	warned, err := kubectlCommand(o.c, fmt.Sprintf(v1, "empty", "Empty", `""`, 1), "create", "--dry-run=server", "-f", "-")
	if err != nil || !strings.Contains(string(warned), "Warning: spec.page.text is empty") {
		o.Errorf("a Website without text: %v\n%s", err, warned)
	}
}

// owned checks what the operator makes of a Website: a ConfigMap and a Deployment that it owns, the finalizer, the condition, an event.
func (o *operatorTest) owned() {
	o.run("wait", "--for=condition=Ready", "website/hello", "--timeout=60s")
	var w website
	o.get(&w, "website", "hello")
	if !slices.Contains(w.Metadata.Finalizers, "web.example.com/archive") {
		o.Errorf("the finalizers are %q", w.Metadata.Finalizers)
	}
	for _, object := range []string{"configmap/hello", "deployment/hello"} {
		owner := o.run("get", object, "-o", `jsonpath={range .metadata.ownerReferences[*]}{.apiVersion} {.kind} {.uid} {.controller}{end}`)
		if want := "web.example.com/v1 Website " + w.Metadata.UID + " true"; owner != want {
			o.Errorf("%s is owned by %q, want %q", object, owner, want)
		}
	}
	o.served("Hello: from the first version")
	if row := strings.Fields(o.run("get", "site", "--no-headers")); !slices.Equal(row, []string{"hello", "Hello", "True"}) {
		o.Errorf("kubectl get prints %q", row)
	}
	eventually(o.T, "the operator's event", func() bool {
		return strings.Contains(o.run("describe", "website", "hello"), "1 of 1 pods are ready")
	})
}

// served checks the page that the pods of the Website hello serve.
func (o *operatorTest) served(want string) {
	o.Helper()
	eventually(o.T, "the page "+want, func() bool {
		addresses := strings.Fields(o.run("get", "pods", "-l", "website=hello", "-o", "jsonpath={.items[*].status.podIP}"))
		for _, address := range addresses {
			if page, err := get(address + ":8080"); err != nil || page != want {
				return false
			}
		}
		return len(addresses) > 0
	})
}

// update changes a Website in the old version, and its scale.
func (o *operatorTest) update() {
	o.run("patch", "websites.v1alpha1.web.example.com", "hello", "--type=merge", "-p", `{"spec":{"text":"Hello\nfrom the second version"}}`)
	eventually(o.T, "the ConfigMap follows", func() bool {
		return o.run("get", "configmap", "hello", "-o", `jsonpath={.data.index\.html}`) == "Hello: from the second version"
	})
	o.run("scale", "website", "hello", "--replicas=2")
	eventually(o.T, "the condition is that of two replicas", func() bool {
		var w website
		o.get(&w, "website", "hello")
		for _, c := range w.Status.Conditions {
			if c.Type == "Ready" {
				return c.Status == "True" && c.ObservedGeneration == w.Metadata.Generation && w.Spec.Replicas == 2
			}
		}
		return false
	})
	o.run("delete", "pods", "-l", "website=hello")
	o.served("Hello: from the second version")
}

// delete deletes a Website. The finalizer runs first, then the garbage collector.
func (o *operatorTest) delete() {
	o.run("delete", "website", "hello", "--timeout=60s")
	if text := o.run("get", "configmap", "archive-hello", "-o", "jsonpath={.data.text}"); text != "from the second version" {
		o.Errorf("archived is %q", text)
	}
	for _, objects := range [][]string{{"configmap/hello", "deployment/hello"}, {"replicasets,pods", "-l", "website=hello"}} {
		eventually(o.T, fmt.Sprintf("%v are gone", objects), func() bool {
			return o.run(append([]string{"get", "--ignore-not-found", "-o", "name"}, objects...)...) == ""
		})
	}
}

// failLeader kills the leader for good: its replacement finds no node until the other operator has taken over.
func (o *operatorTest) failLeader() {
	holder := func() string {
		identity := o.run("get", "lease", "operator", "--namespace=operator", "-o", "jsonpath={.spec.holderIdentity}")
		pod, _, _ := strings.Cut(identity, "_")
		return pod
	}
	pods := strings.Fields(o.run("get", "pods", "--namespace=operator", "-o", "jsonpath={.items[*].metadata.name}"))
	leader := holder()
	if len(pods) != 2 || !slices.Contains(pods, leader) {
		o.Fatalf("the leader is %q among %q", leader, pods)
	}
	other := pods[0]
	if other == leader {
		other = pods[1]
	}
	o.run("cordon", "node-1")
	o.run("delete", "pod", leader, "--namespace=operator", "--grace-period=0", "--force")
	// The webhooks of the other work all the time.
	eventually(o.T, "a Website is created", func() bool {
		out, err := kubectlCommand(o.c, strings.ReplaceAll(oldWebsite, "hello", "second"), "create", "-f", "-")
		if err != nil && !strings.Contains(string(out), "webhook") {
			o.Fatalf("create: %v\n%s", err, out)
		}
		return err == nil
	})
	eventually(o.T, "the other operator is the leader", func() bool { return holder() == other })
	o.run("wait", "--for=create", "deployment/second", "--timeout=60s")
	o.run("uncordon", "node-1")
	o.run("wait", "--for=condition=Ready", "website/second", "--timeout=60s")
	o.run("rollout", "status", "deployment/operator", "--namespace=operator", "--timeout=60s")
}

// uninstall deletes the definition, and with it the Websites, whose finalizers the operator runs.
func (o *operatorTest) uninstall() {
	o.run("delete", "crd", "websites.web.example.com", "--timeout=60s")
	o.run("get", "configmap", "archive-second")
	eventually(o.T, "the pods are gone", func() bool { return o.run("get", "pods", "-l", "website", "-o", "name") == "" })
	o.refused("the server could not find the requested resource", "", "get", "--raw", "/apis/web.example.com/v1/websites")
	o.run("delete", "namespace", "operator", "--timeout=60s")
}
