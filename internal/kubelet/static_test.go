package kubelet

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/podstate"
)

const manifestHead = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers: [{name: a, image: image}]\n"

func TestDecodeManifest(t *testing.T) {
	k := &Kubelet{Config: Config{NodeName: "n1"}}
	for _, row := range []struct{ name, text, want, wrong string }{
		{"one pod", manifestHead, "default/web-n1", ""},
		{"JSON", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"kube-system"},"spec":{"containers":[{"name":"a","image":"i"}]}}`, "kube-system/web-n1", ""},
		{"a list", "apiVersion: v1\nkind: PodList\nitems:\n- {metadata: {name: x}, spec: {containers: [{name: a, image: i}]}}\n- {metadata: {name: z}, spec: {containers: [{name: a, image: i}]}}\n", "default/x-n1 default/z-n1", ""},
		{"an empty list", "apiVersion: v1\nkind: PodList\nitems: []\n", "", ""},
		{"no name", "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, image: i}]}\n", "", "invalid pod: name is needed for the pod"},
		{"no name in a list", "apiVersion: v1\nkind: PodList\nitems: [{spec: {containers: [{name: a, image: i}]}}]\n", "", "invalid pod: name is needed for the pod"},
		{"no containers", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {}\n", "", "spec.containers: Required value"},
		{"another kind", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n", "", `invalid pod: kind is "Service"`},
		{"not YAML", "{", "", "yaml"},
		{"a service account", manifestHead + "  serviceAccountName: me\n", "", "static pods may not reference serviceaccounts"},
		{"a secret to pull with", manifestHead + "  imagePullSecrets: [{name: s}]\n", "", "static pods may not reference secrets"},
		{"a secret in a volume", manifestHead + "  volumes: [{name: v, secret: {secretName: s}}]\n", "", "static pods may not reference secrets"},
		{"a config map in a volume", manifestHead + "  volumes: [{name: v, configMap: {name: m}}]\n", "", "static pods may not reference configmaps"},
		{"a variable from a config map", strings.Replace(manifestHead, "image: image", "image: image, envFrom: [{configMapRef: {name: m}}]", 1), "", "static pods may not reference configmaps"},
		{"a claim", manifestHead + "  volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]\n", "", "static pods may not reference persistentvolumeclaims"},
		{"a token", manifestHead + "  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]\n", "", "must not be specified when serviceAccountName is not set"},
		{"a trust bundle", manifestHead + "  volumes: [{name: v, projected: {sources: [{clusterTrustBundle: {name: b, path: t}}]}}]\n", "", "static pods may not reference clustertrustbundles"},
		{"a resource claim", manifestHead + "  resourceClaims: [{name: r, resourceClaimName: c}]\n", "", "static pods may not reference resourceclaims"},
		{"what needs no API", manifestHead + "  volumes: [{name: v, hostPath: {path: /x}}, {name: w, emptyDir: {}}, {name: d, downwardAPI: {items: []}}]\n", "default/web-n1", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			pods, err := k.decodeManifest([]byte(row.text), "url:http://x")
			wrong := ""
			if err != nil {
				wrong = err.Error()
			}
			if row.wrong == "" && wrong != "" || !strings.Contains(wrong, row.wrong) {
				t.Fatalf("error %q, want %q", wrong, row.wrong)
			}
			var names []string
			for _, pod := range pods {
				names = append(names, pod.Namespace+"/"+pod.Name)
				if pod.Spec.NodeName != "n1" || pod.Annotations[annotationHash] != string(pod.UID) || pod.UID == "" || pod.Status.Phase != corev1.PodPending || pod.Spec.RestartPolicy != corev1.RestartPolicyAlways {
					t.Errorf("pod %+v", pod)
				}
			}
			if got := strings.Join(names, " "); got != row.want {
				t.Errorf("pods %q, want %q", got, row.want)
			}
		})
	}
}

// TestTolerationsOfStaticPods: static pods from files tolerate all NoExecute taints, those from a URL do not.
func TestTolerationsOfStaticPods(t *testing.T) {
	k := &Kubelet{Config: Config{NodeName: "n1"}}
	for source, want := range map[string]int{"file:/x": 1, "url:http://x": 0} {
		pods, err := k.decodeManifest([]byte(manifestHead), source)
		if err != nil || len(pods) != 1 || len(pods[0].Spec.Tolerations) != want {
			t.Errorf("%s: %+v, %v; want %d tolerations", source, pods, err, want)
		}
	}
}

// TestIdentityOfStaticPods: the same manifest in another file, or for another node, has another UID.
func TestIdentityOfStaticPods(t *testing.T) {
	seen := map[string]string{}
	for _, row := range []struct{ node, source, text string }{
		{"n1", "url:http://x", manifestHead}, {"n1", "url:http://y", manifestHead}, {"n1", "file:/x", manifestHead}, {"n2", "file:/x", manifestHead},
		{"n1", "url:http://x", strings.Replace(manifestHead, "image: image", "image: other", 1)},
	} {
		k := &Kubelet{Config: Config{NodeName: row.node}}
		pods, err := k.decodeManifest([]byte(row.text), row.source)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := k.decodeManifest([]byte(row.text), row.source)
		where := fmt.Sprint(row)
		if other := seen[string(pods[0].UID)]; other != "" || again[0].UID != pods[0].UID {
			t.Errorf("%s has the identity of %s, or another the second time", where, other)
		}
		seen[string(pods[0].UID)] = where
	}
}

// TestStaticPodsFromURL adds, changes and removes pods with the manifest, and keeps them while the manifest is invalid.
func TestStaticPodsFromURL(t *testing.T) {
	var mu sync.Mutex
	code, body, asked := http.StatusOK, "", ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = r.Header.Get("X-Node")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body)) // a kubelet that is gone need not read
	}))
	defer server.Close()
	say := func(c int, text string) {
		mu.Lock()
		defer mu.Unlock()
		code, body = c, text
	}
	text := func(image string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {terminationGracePeriodSeconds: 1, containers: [{name: a, image: " + image + "}]}\n"
	}
	say(http.StatusOK, text("image"))
	b := newTestKubelet(t)
	b.stop()
	b.config.StaticPodURL, b.config.StaticPodHeader, b.config.StaticPodURLPeriod = server.URL, map[string][]string{"X-Node": {"n1"}}, 20*time.Millisecond
	b.config.Node = func() *corev1.Node {
		node, err := client.For[*corev1.Node](b.client).Get(b.ctx, "", "n1")
		if err != nil {
			return nil
		}
		return node
	}
	b.start()
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-n1"}}
	first := b.until(mirror, "running", running)
	if first.Annotations[podstate.ConfigSourceAnnotationKey] != "http" {
		t.Errorf("it says that it comes from %q", first.Annotations[podstate.ConfigSourceAnnotationKey])
	}
	mu.Lock()
	if asked != "n1" {
		t.Errorf("the server was asked without the header: %q", asked)
	}
	mu.Unlock()
	for _, nonsense := range []func(){
		func() { say(http.StatusInternalServerError, "") }, func() { say(http.StatusOK, "{") },
		func() { say(http.StatusOK, text("image")+strings.Repeat("#", maxManifest)) },
	} {
		nonsense()
		time.Sleep(60 * time.Millisecond)
		if now, err := b.pods.Get(b.ctx, "default", "web-n1"); err != nil || now.UID != first.UID || !running(now) {
			t.Errorf("the pod is gone with a server that says nothing sensible: %v", err)
		}
	}
	say(http.StatusOK, text("other"))
	b.until(mirror, "replaced", func(p *corev1.Pod) bool {
		return p.UID != first.UID && p.Spec.Containers[0].Image == "other" && running(p)
	})
	say(http.StatusOK, "")
	b.gone(mirror)
}
