package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

// TestAdmission sends the same writes to skiff and to upstream and compares every response: the stored object or the rejection, and
// the warnings. No controllers run, so that only admission changes objects. The test itself creates what controllers would: default
// service accounts and the status of quotas.
func TestAdmission(t *testing.T) {
	t.Parallel()
	skiff, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(skiff.Stop)
	upstream, err := cluster.UpstreamAPI(t.TempDir(), "", "--allow-privileged", "--enable-admission-plugins=NodeRestriction,DenyServiceExternalIPs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Stop)

	setup, calls, lists := admissionFixtures(), admissionCalls(), admissionLists()
	if len(calls) < 200 {
		t.Fatalf("only %d calls", len(calls))
	}
	responses := map[*cluster.Cluster][]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, c := range []*cluster.Cluster{skiff, upstream} {
		wg.Go(func() {
			a := newAPIClient(t, c)
			for _, s := range setup {
				if got := a.send(s); !strings.HasPrefix(got, "20") {
					t.Errorf("%s: %s: %s", c.Name, s.name, got)
				}
			}
			time.Sleep(3 * time.Second) // upstream's plugins read other objects from informers
			var got []string
			for _, s := range calls {
				got = append(got, a.send(s))
				if strings.HasPrefix(s.path, "/api/v1/namespaces/") && s.method == http.MethodPatch && strings.Count(s.path, "/") == 4 {
					time.Sleep(time.Second) // the namespace's labels changed; upstream's plugins read them from an informer
				}
			}
			time.Sleep(time.Second)
			for _, s := range lists {
				got = append(got, a.send(s))
			}
			mu.Lock()
			responses[c] = got
			mu.Unlock()
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	refused, differ := 0, 0
	for i, s := range append(calls, lists...) {
		got, want := responses[skiff][i], responses[upstream][i]
		if !strings.HasPrefix(want, "20") {
			refused++
		}
		if got == want {
			continue
		}
		if differ++; differ <= 20 {
			t.Errorf("%s: %s %s\n%s\n%s", s.name, s.method, s.path, s.body, difference(got, want))
		}
	}
	t.Logf("%d writes, %d of them rejected, %d responses differ", len(calls), refused, differ)
	if refused < len(calls)/5 || refused > len(calls)*4/5 {
		t.Errorf("%d of %d rejected: the calls do not cover both outcomes", refused, len(calls))
	}
}

// call is one request.
type call struct{ name, method, path, body string }

// mergePatch and applyPatch are methods of calls that send a PATCH of another type than a strategic merge patch.
const mergePatch, applyPatch = "merge patch", "apply"

var patchTypes = map[string]string{
	http.MethodPatch: "application/strategic-merge-patch+json", mergePatch: "application/merge-patch+json", applyPatch: "application/apply-patch+yaml",
}

// apiClient sends requests to one server.
type apiClient struct {
	t      *testing.T
	client *http.Client
	url    string
}

func newAPIClient(t *testing.T, c *cluster.Cluster) *apiClient {
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &apiClient{t: t, client: client, url: c.URL}
}

var (
	listed = regexp.MustCompile(`\[[^\]]*\]`)
	// diffInMessage is the diff in an error message: upstream prints its internal types, skiff the API types.
	diffInMessage = regexp.MustCompile(`\\n@@.*`)
)

// send returns the response to a request, without the parts that differ from run to run.
func (a *apiClient) send(c call) string {
	method, contentType := c.method, "application/json"
	if patch, ok := patchTypes[c.method]; ok {
		method, contentType = http.MethodPatch, patch
	}
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+c.path, strings.NewReader(c.body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("User-Agent", "admission/1")
	req.Header.Set("Content-Type", contentType)
	res, err := a.client.Do(req)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	var body map[string]any
	if err := json.Unmarshal(data, &body); err != nil {
		return fmt.Sprintf("%d %s", res.StatusCode, data)
	}
	removeVolatileFields(body)
	data, err = json.MarshalIndent(body, "", " ")
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("%d %s\n%s", res.StatusCode, strings.Join(res.Header.Values("Warning"), "\n"), data)
	return normalize(diffInMessage.ReplaceAllString(text, `"`))
}

// removeVolatileFields removes what upstream orders at random, and the field managers of a quota's status.
func removeVolatileFields(body map[string]any) {
	if message, ok := body["message"].(string); ok {
		body["message"] = listed.ReplaceAllStringFunc(message, func(list string) string {
			parts := strings.Split(strings.Trim(list, "[]"), ", ")
			slices.Sort(parts)
			return "[" + strings.Join(parts, ", ") + "]"
		})
	}
	objects := []any{body}
	if items, ok := body["items"].([]any); ok {
		objects = items
	}
	for _, o := range objects {
		object, _ := o.(map[string]any)
		spec, _ := object["spec"].(map[string]any)
		if _, isQuota := spec["hard"]; isQuota {
			metadata, _ := object["metadata"].(map[string]any)
			delete(metadata, "managedFields")
		}
	}
}

func post(name, path, body string) call { return call{name, http.MethodPost, path, body} }

// admissionNamespaces differ in what admission plugins find in them.
var admissionNamespaces = map[string]string{
	"plain": `{}`, "limited": `{}`, "small": `{}`, "scoped": `{}`,
	"baseline":   `{"pod-security.kubernetes.io/enforce":"baseline"}`,
	"restricted": `{"pod-security.kubernetes.io/warn":"restricted","pod-security.kubernetes.io/enforce":"baseline","pod-security.kubernetes.io/enforce-version":"v1.30"}`,
}

func admissionFixtures() []call {
	var all []call
	for _, ns := range slices.Sorted(maps.Keys(admissionNamespaces)) {
		all = append(all,
			post(ns, "/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q,"labels":%s}}`, ns, admissionNamespaces[ns])),
			post("account of "+ns, "/api/v1/namespaces/"+ns+"/serviceaccounts", `{"metadata":{"name":"default"},"imagePullSecrets":[{"name":"registry"}]}`),
			post("robot of "+ns, "/api/v1/namespaces/"+ns+"/serviceaccounts", `{"metadata":{"name":"robot"},"automountServiceAccountToken":false}`),
			post("strict account of "+ns, "/api/v1/namespaces/"+ns+"/serviceaccounts",
				`{"metadata":{"name":"strict","annotations":{"kubernetes.io/enforce-mountable-secrets":"true"}},"secrets":[{"name":"listed"}]}`))
	}
	all = append(all,
		post("limits", "/api/v1/namespaces/limited/limitranges", `{"metadata":{"name":"limits"},"spec":{"limits":[
			{"type":"Container","default":{"cpu":"200m","memory":"64Mi"},"defaultRequest":{"cpu":"100m"},"max":{"cpu":"1"},"min":{"cpu":"50m"},"maxLimitRequestRatio":{"cpu":"4"}},
			{"type":"Pod","max":{"cpu":"1500m"}},{"type":"PersistentVolumeClaim","min":{"storage":"1Gi"},"max":{"storage":"5Gi"}}]}}`),
		post("high", "/apis/scheduling.k8s.io/v1/priorityclasses", `{"metadata":{"name":"high"},"value":1000}`),
		post("polite", "/apis/scheduling.k8s.io/v1/priorityclasses", `{"metadata":{"name":"polite"},"value":10,"preemptionPolicy":"Never"}`),
		post("usual", "/apis/scheduling.k8s.io/v1/priorityclasses", `{"metadata":{"name":"usual"},"value":5,"globalDefault":true}`),
		post("sandbox", "/apis/node.k8s.io/v1/runtimeclasses", `{"metadata":{"name":"sandbox"},"handler":"runsc","overhead":{"podFixed":{"cpu":"250m"}},
			"scheduling":{"nodeSelector":{"sandbox":"yes"},"tolerations":[{"key":"sandbox","operator":"Exists","effect":"NoSchedule"}]}}`),
		post("tin", "/apis/storage.k8s.io/v1/storageclasses", `{"metadata":{"name":"tin"},"provisioner":"x/y"}`),
		post("gold", "/apis/storage.k8s.io/v1/storageclasses",
			`{"metadata":{"name":"gold","annotations":{"storageclass.kubernetes.io/is-default-class":"true"}},"provisioner":"x/y","allowVolumeExpansion":true}`),
		post("ingress class", "/apis/networking.k8s.io/v1/ingressclasses",
			`{"metadata":{"name":"usual","annotations":{"ingressclass.kubernetes.io/is-default-class":"true"}},"spec":{"controller":"x/y"}}`),
		post("node", "/api/v1/nodes", `{"metadata":{"name":"node-1","labels":{"topology.kubernetes.io/zone":"z","topology.kubernetes.io/region":"r"}}}`),
		post("leaving", "/api/v1/namespaces", `{"metadata":{"name":"leaving"}}`),
		call{"leave", http.MethodDelete, "/api/v1/namespaces/leaving", ""})
	all = append(all, admissionQuota("small", "objects", "", map[string]string{
		"pods": "8", "services": "6", "services.nodeports": "4", "services.loadbalancers": "2", "configmaps": "3", "count/secrets": "2",
		"persistentvolumeclaims": "6", "requests.storage": "20Gi", "gold.storageclass.storage.k8s.io/requests.storage": "6Gi",
		"count/deployments.apps": "2", "count/ingresses.networking.k8s.io": "1",
	})...)
	all = append(all, admissionQuota("scoped", "deadline", `"scopes":["Terminating"],`, map[string]string{"pods": "3", "requests.cpu": "1"})...)
	all = append(all, admissionQuota("scoped", "effort", `"scopes":["BestEffort"],`, map[string]string{"pods": "6"})...)
	all = append(all, admissionQuota("scoped", "high", `"scopeSelector":{"matchExpressions":[{"scopeName":"PriorityClass","operator":"In","values":["high"]}]},`,
		map[string]string{"pods": "2", "limits.cpu": "2"})...)
	// In a separate namespace: which of several exhausted quotas rejects a pod is random upstream.
	return append(all, admissionQuota("baseline", "affinity", `"scopes":["CrossNamespacePodAffinity"],`, map[string]string{"pods": "2"})...)
}

// admissionQuota creates a quota with zero usage.
func admissionQuota(namespace, name, scopes string, hard map[string]string) []call {
	used := map[string]string{}
	for resource := range hard {
		used[resource] = "0"
	}
	hardText, _ := json.Marshal(hard)
	usedText, _ := json.Marshal(used)
	path := "/api/v1/namespaces/" + namespace + "/resourcequotas"
	spec := fmt.Sprintf(`{%s"hard":%s}`, scopes, hardText)
	return []call{
		post("quota "+name, path, fmt.Sprintf(`{"metadata":{"name":%q},"spec":%s}`, name, spec)),
		{"status of quota " + name, http.MethodPut, path + "/" + name + "/status",
			fmt.Sprintf(`{"metadata":{"name":%q},"spec":%s,"status":{"hard":%s,"used":%s}}`, name, spec, hardText, usedText)},
	}
}

// object is a JSON object under construction.
type object = map[string]any

// podFeatures are pod settings that some admission plugin checks. Each changes the pod's metadata, spec and first container.
var podFeatures = []struct {
	name string
	add  func(metadata, spec, first object)
}{
	{"nothing", func(_, _, _ object) {}},
	{"requests", func(_, _, c object) { merge(c, `{"resources":{"requests":{"cpu":"300m","memory":"32Mi"}}}`) }},
	{"limits", func(_, _, c object) { merge(c, `{"resources":{"limits":{"cpu":"600m"}}}`) }},
	{"much", func(_, _, c object) { merge(c, `{"resources":{"requests":{"cpu":"2"},"limits":{"cpu":"3"}}}`) }},
	{"ratio", func(_, _, c object) { merge(c, `{"resources":{"requests":{"cpu":"100m"},"limits":{"cpu":"900m"}}}`) }},
	{"extended", func(_, _, c object) { merge(c, `{"resources":{"limits":{"example.com/gpu":"1"}}}`) }},
	{"init", func(_, s, _ object) { merge(s, `{"initContainers":[{"name":"prepare","image":"prepare"}]}`) }},
	{"sidecar", func(_, s, _ object) {
		merge(s, `{"initContainers":[{"name":"side","image":"side","restartPolicy":"Always","resources":{"limits":{"cpu":"800m"}}}]}`)
	}},
	{"host network", func(_, s, _ object) { merge(s, `{"hostNetwork":true}`) }},
	{"privileged", func(_, _, c object) { merge(c, `{"securityContext":{"privileged":true}}`) }},
	{"careful", func(_, s, c object) {
		merge(s, `{"securityContext":{"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}}}`)
		merge(c, `{"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}`)
	}},
	{"high", func(_, s, _ object) { merge(s, `{"priorityClassName":"high"}`) }},
	{"polite", func(_, s, _ object) { merge(s, `{"priorityClassName":"polite"}`) }},
	{"unknown priority", func(_, s, _ object) { merge(s, `{"priorityClassName":"unknown"}`) }},
	{"own priority", func(_, s, _ object) { merge(s, `{"priority":77}`) }},
	{"own preemption", func(_, s, _ object) { merge(s, `{"preemptionPolicy":"Never"}`) }},
	{"sandbox", func(_, s, _ object) { merge(s, `{"runtimeClassName":"sandbox"}`) }},
	{"unknown runtime", func(_, s, _ object) { merge(s, `{"runtimeClassName":"unknown"}`) }},
	{"overhead", func(_, s, _ object) { merge(s, `{"overhead":{"cpu":"250m"}}`) }},
	{"selector", func(_, s, _ object) { merge(s, `{"nodeSelector":{"sandbox":"no"}}`) }},
	{"tolerates", func(_, s, _ object) {
		merge(s, `{"tolerations":[{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":7}]}`)
	}},
	{"tolerates all", func(_, s, _ object) { merge(s, `{"tolerations":[{"operator":"Exists"}]}`) }},
	{"robot", func(_, s, _ object) { merge(s, `{"serviceAccountName":"robot"}`) }},
	{"unknown account", func(_, s, _ object) { merge(s, `{"serviceAccountName":"unknown"}`) }},
	{"strict account", func(_, s, _ object) { merge(s, `{"serviceAccountName":"strict"}`) }},
	{"secret", func(_, _, c object) { merge(c, `{"envFrom":[{"secretRef":{"name":"unlisted"}}]}`) }},
	{"automount", func(_, s, _ object) { merge(s, `{"automountServiceAccountToken":true}`) }},
	{"no automount", func(_, s, _ object) { merge(s, `{"automountServiceAccountToken":false}`) }},
	{"own mount", func(_, s, c object) {
		merge(s, `{"volumes":[{"name":"mine","emptyDir":{}}]}`)
		merge(c, `{"volumeMounts":[{"name":"mine","mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}]}`)
	}},
	{"pull secret", func(_, s, _ object) { merge(s, `{"imagePullSecrets":[{"name":"own"}]}`) }},
	{"deadline", func(_, s, _ object) { merge(s, `{"activeDeadlineSeconds":60}`) }},
	{"node", func(_, s, _ object) { merge(s, `{"nodeName":"node-1"}`) }},
	{"unknown node", func(_, s, _ object) { merge(s, `{"nodeName":"node-9"}`) }},
	{"as a whole", func(_, s, _ object) { merge(s, `{"resources":{"requests":{"cpu":"700m"},"limits":{"cpu":"700m"}}}`) }},
	{"affinity", func(_, s, _ object) {
		merge(s, `{"affinity":{"podAntiAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":[{"topologyKey":"x","namespaces":["plain"]}]}}}`)
	}},
	{"mirror", func(m, _, _ object) { merge(m, `{"annotations":{"kubernetes.io/config.mirror":"x"}}`) }},
}

// merge merges JSON into an object, one level deep; lists are replaced, objects merged.
func merge(into object, text string) {
	var more object
	if err := json.Unmarshal([]byte(text), &more); err != nil {
		panic(text + ": " + err.Error())
	}
	for key, value := range more {
		had, isObject := into[key].(object)
		adds, isToo := value.(object)
		if !isObject || !isToo {
			into[key] = value
			continue
		}
		for k, v := range adds {
			if before, ok := had[k].(object); ok {
				if after, ok := v.(object); ok {
					maps.Copy(before, after)
					continue
				}
			}
			had[k] = v
		}
	}
}

func podWith(name string, features ...int) string {
	metadata, first := object{"name": name}, object{"name": "main", "image": "busybox"}
	spec := object{"containers": []any{first}}
	for _, i := range features {
		podFeatures[i].add(metadata, spec, first)
	}
	text, _ := json.Marshal(object{"metadata": metadata, "spec": spec})
	return string(text)
}

func admissionCalls() []call {
	var all []call
	for _, ns := range []string{"plain", "limited", "scoped", "restricted", "small"} {
		for i, f := range podFeatures {
			all = append(all, post(fmt.Sprintf("pod with %s in %s", f.name, ns), "/api/v1/namespaces/"+ns+"/pods", podWith(fmt.Sprint("single-", i), i)))
		}
	}
	spaces := []string{"plain", "limited", "baseline"}
	for i := range podFeatures {
		for j := i + 1; j < len(podFeatures); j++ {
			if ns := spaces[(i*7+j)%len(spaces)]; (i+j)%2 == 0 {
				all = append(all, post(fmt.Sprintf("pod with %s and %s in %s", podFeatures[i].name, podFeatures[j].name, ns),
					"/api/v1/namespaces/"+ns+"/pods", podWith(fmt.Sprintf("pair-%d-%d", i, j), i, j)))
			}
		}
	}
	all = append(all, serviceCalls()...)
	all = append(all, storageCalls()...)
	return append(all, otherCalls()...)
}

func serviceCalls() []call {
	path := "/api/v1/namespaces/small/services"
	body := func(name, spec string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{%s}}`, name, spec)
	}
	ports := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`{"name":"p%d","port":%d}`, i, 80+i))
		}
		return `"ports":[` + strings.Join(list, ",") + `]`
	}
	var all []call
	for i, kind := range []string{"ClusterIP", "NodePort", "LoadBalancer", "NodePort", "LoadBalancer", "LoadBalancer", "ClusterIP", "ClusterIP", "ClusterIP"} {
		all = append(all, post("service "+kind, path, body(fmt.Sprint("s", i), fmt.Sprintf(`"type":%q,%s`, kind, ports(1+i%2)))))
	}
	all = append(all,
		post("headless", "/api/v1/namespaces/plain/services", body("headless", `"clusterIP":"None",`+ports(1))),
		post("external address", "/api/v1/namespaces/plain/services", body("external", `"externalIPs":["192.0.2.7"],`+ports(1))),
		post("without node ports", path, body("quiet", `"type":"LoadBalancer","allocateLoadBalancerNodePorts":false,`+ports(3))),
		call{"becomes a node port", http.MethodPatch, path + "/s0", `{"spec":{"type":"NodePort"}}`},
		call{"becomes a load balancer", http.MethodPatch, path + "/s0", `{"spec":{"type":"LoadBalancer"}}`},
		call{"gets an external address", http.MethodPatch, path + "/s0", `{"spec":{"externalIPs":["192.0.2.8"]}}`},
		call{"gets a label", http.MethodPatch, path + "/s0", `{"metadata":{"labels":{"a":"b"}}}`})
	return all
}

func storageCalls() []call {
	var all []call
	for i, size := range []string{"512Mi", "1Gi", "2Gi", "4Gi", "6Gi", "10Gi"} {
		for _, class := range []string{"", `"storageClassName":"tin",`, `"storageClassName":"gold",`, `"storageClassName":"",`} {
			for _, ns := range []string{"plain", "limited", "small"} {
				all = append(all, post(fmt.Sprintf("claim of %s in %s: %s", size, ns, class), "/api/v1/namespaces/"+ns+"/persistentvolumeclaims",
					fmt.Sprintf(`{"metadata":{"name":"c%d-%d"},"spec":{%s"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":%q}}}}`, i, len(class), class, size)))
			}
		}
	}
	const claims = "/api/v1/namespaces/plain/persistentvolumeclaims"
	grow := `{"spec":{"resources":{"requests":{"storage":"20Gi"}}}}`
	bound := `{"status":{"phase":"Bound","capacity":{"storage":"1Gi"}}}`
	return append(all,
		call{"grow an unbound claim", http.MethodPatch, claims + "/c1-0", grow},
		call{"bind it", http.MethodPatch, claims + "/c1-0/status", bound},
		call{"grow it", http.MethodPatch, claims + "/c1-0", grow},
		call{"bind one of tin", http.MethodPatch, claims + "/c1-25/status", bound},
		call{"grow one of tin", http.MethodPatch, claims + "/c1-25", grow},
		post("volume", "/api/v1/persistentvolumes", `{"metadata":{"name":"v"},"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`),
		post("attributes class", "/apis/storage.k8s.io/v1/volumeattributesclasses", `{"metadata":{"name":"fast"},"driverName":"x.y","parameters":{"a":"b"}}`))
}

func otherCalls() []call {
	deployment := func(name, spec string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"%s}]}}}}`, name, spec)
	}
	ingress := `{"metadata":{"name":%q%s},"spec":{%s"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`
	var all []call
	for i := range 4 {
		all = append(all,
			post("config map", "/api/v1/namespaces/small/configmaps", fmt.Sprintf(`{"metadata":{"name":"m%d"}}`, i)),
			post("secret", "/api/v1/namespaces/small/secrets", fmt.Sprintf(`{"metadata":{"name":"s%d"}}`, i)),
			post("deployment", "/apis/apps/v1/namespaces/small/deployments", deployment(fmt.Sprint("d", i), "")))
	}
	patch := func(name, path, body string) call { return call{name, http.MethodPatch, path, body} }
	const pods = "/api/v1/namespaces/"
	return append(all,
		post("careless deployment", "/apis/apps/v1/namespaces/restricted/deployments", deployment("careless", "")),
		post("privileged deployment", "/apis/apps/v1/namespaces/baseline/deployments", deployment("privileged", `,"securityContext":{"privileged":true}`)),
		post("ingress", "/apis/networking.k8s.io/v1/namespaces/small/ingresses", fmt.Sprintf(ingress, "a", "", "")),
		post("another ingress", "/apis/networking.k8s.io/v1/namespaces/small/ingresses", fmt.Sprintf(ingress, "b", "", "")),
		post("ingress with annotation", "/apis/networking.k8s.io/v1/namespaces/plain/ingresses", fmt.Sprintf(ingress, "c", `,"annotations":{"kubernetes.io/ingress.class":"x"}`, "")),
		post("ingress with class", "/apis/networking.k8s.io/v1/namespaces/plain/ingresses", fmt.Sprintf(ingress, "d", "", `"ingressClassName":"mine",`)),
		post("second default priority", "/apis/scheduling.k8s.io/v1/priorityclasses", `{"metadata":{"name":"second"},"value":6,"globalDefault":true}`),
		patch("high becomes default", "/apis/scheduling.k8s.io/v1/priorityclasses/high", `{"globalDefault":true}`),
		post("node", "/api/v1/nodes", `{"metadata":{"name":"node-2"},"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`),
		post("pod in a leaving namespace", "/api/v1/namespaces/leaving/pods", podWith("late")),
		post("config map in a leaving namespace", "/api/v1/namespaces/leaving/configmaps", `{"metadata":{"generateName":"late-"}}`),
		post("pod in no namespace", "/api/v1/namespaces/nowhere/pods", podWith("lost")),
		call{"delete default", http.MethodDelete, "/api/v1/namespaces/default", ""},
		call{"delete kube-system", http.MethodDelete, "/api/v1/namespaces/kube-system", ""},
		post("bad level", "/api/v1/namespaces", `{"metadata":{"name":"bad","labels":{"pod-security.kubernetes.io/enforce":"strict","pod-security.kubernetes.io/warn-version":"v0"}}}`),
		patch("raise the level", "/api/v1/namespaces/plain", `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`),
		post("now refused", pods+"plain/pods", podWith("now-refused")),
		patch("lower the level", "/api/v1/namespaces/plain", `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":null}}}`),
		post("generated name", pods+"scoped/pods", `{"metadata":{"generateName":"made-"},"spec":{"activeDeadlineSeconds":5,"containers":[{"name":"c","image":"i"}]}}`),
		patch("into the scope of deadlines", pods+"scoped/pods/single-1", `{"spec":{"activeDeadlineSeconds":5}}`),
		patch("a label", pods+"scoped/pods/single-0", `{"metadata":{"labels":{"a":"b"}}}`),
		patch("an image", pods+"baseline/pods/pair-0-2", `{"spec":{"containers":[{"name":"main","image":"other"}]}}`),
		patch("resize within", pods+"limited/pods/single-1/resize", `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"400m"},"limits":{"cpu":"500m"}}}]}}`),
		patch("resize beyond", pods+"limited/pods/single-1/resize", `{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"2"}}}]}}`),
		patch("debug", pods+"baseline/pods/pair-0-2/ephemeralcontainers", `{"spec":{"ephemeralContainers":[{"name":"d","image":"i","targetContainerName":"main"}]}}`),
		patch("debug with privileges", pods+"baseline/pods/pair-0-2/ephemeralcontainers",
			`{"spec":{"ephemeralContainers":[{"name":"e","image":"i","securityContext":{"privileged":true}}]}}`),
		patch("debug with a secret", pods+"plain/pods/single-24/ephemeralcontainers",
			`{"spec":{"ephemeralContainers":[{"name":"d","image":"i","env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"listed","key":"k"}}}]}]}}`),
		post("bind", pods+"plain/pods/single-0/binding", `{"metadata":{"name":"single-0"},"target":{"kind":"Node","name":"node-1"}}`),
		post("dry run", pods+"small/pods?dryRun=All", podWith("dry")),
		post("quota in a quota", pods+"small/resourcequotas", `{"metadata":{"name":"more"},"spec":{"hard":{"cpu":"1"}}}`),
		post("not added up yet", pods+"small/pods", podWith("unknown", 1)),
	)
}

// admissionLists read everything that is stored after all writes.
func admissionLists() []call {
	var all []call
	for _, ns := range slices.Sorted(maps.Keys(admissionNamespaces)) {
		for _, what := range []string{"pods", "services", "persistentvolumeclaims", "resourcequotas"} {
			all = append(all, call{what + " in " + ns, http.MethodGet, "/api/v1/namespaces/" + ns + "/" + what, ""})
		}
	}
	return all
}
