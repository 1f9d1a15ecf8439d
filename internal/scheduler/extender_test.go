package scheduler

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

const oneMinute = time.Minute

// parsed reads a configuration's fields.
func parsed(t testing.TB, fields string) *configv1.KubeSchedulerConfiguration {
	t.Helper()
	c, err := ParseConfiguration(schedulertest.Configuration(fields))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// fakeExtender is an extender over real HTTP: the requests it got, and its responses by verb.
type fakeExtender struct {
	*httptest.Server
	t         *testing.T
	requests  []string // method, path, content type
	bodies    []string
	responses map[string]any // an error is a code
}

func (v *fakeExtender) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		v.t.Error(err)
	}
	v.requests, v.bodies = append(v.requests, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type")), append(v.bodies, string(body))
	response := v.responses[strings.TrimPrefix(r.URL.Path, "/scheduler/")]
	switch a := response.(type) {
	case int:
		w.WriteHeader(a)
	case string:
		fmt.Fprint(w, a)
	default:
		_ = json.NewEncoder(w).Encode(response)
	}
}

func newFakeExtender(t *testing.T, responses map[string]any) *fakeExtender {
	v := &fakeExtender{t: t, responses: responses}
	v.Server = httptest.NewServer(v)
	t.Cleanup(v.Close)
	return v
}

func (v *fakeExtender) extender(config configv1.Extender) *extender {
	v.t.Helper()
	config.URLPrefix = v.URL + "/scheduler"
	e, err := newExtender(&config)
	if err != nil {
		v.t.Fatal(err)
	}
	return e
}

func nodeList(names ...string) *corev1.NodeList {
	list := &corev1.NodeList{}
	for _, name := range names {
		list.Items = append(list.Items, *schedulertest.TestNode(name))
	}
	return list
}

func TestExtenderFilter(t *testing.T) {
	nodes := []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")}
	pod := schedulertest.TestPod("p")
	for _, test := range []struct {
		name     string
		config   configv1.Extender
		response any
		want     []string
		refuse   map[string]plugins.Refusal
		fails    string
		called   string // what the request contains
	}{
		{name: "who has no verb is not asked", want: []string{"a", "b", "c"}},
		{name: "nodes in, nodes out", config: configv1.Extender{FilterVerb: "filter"}, response: extenderv1.ExtenderFilterResult{Nodes: nodeList("c", "a")}, want: []string{"c", "a"}, called: `"Nodes":{"metadata":{},"items":[{"metadata":{"name":"a"`},
		{name: "names in, names out", config: configv1.Extender{FilterVerb: "filter", NodeCacheCapable: true}, response: extenderv1.ExtenderFilterResult{NodeNames: &[]string{"b"}}, want: []string{"b"}, called: `"NodeNames":["a","b","c"]`},
		{name: "names in, nodes out", config: configv1.Extender{FilterVerb: "filter", NodeCacheCapable: true}, response: extenderv1.ExtenderFilterResult{Nodes: nodeList("b")}, want: []string{"b"}},
		{name: "who was sent nodes is not heard with names", config: configv1.Extender{FilterVerb: "filter"}, response: extenderv1.ExtenderFilterResult{NodeNames: &[]string{"b"}}},
		{name: "an empty answer leaves none", config: configv1.Extender{FilterVerb: "filter"}, response: extenderv1.ExtenderFilterResult{}},
		{name: "an empty list of names leaves none", config: configv1.Extender{FilterVerb: "filter", NodeCacheCapable: true}, response: extenderv1.ExtenderFilterResult{NodeNames: &[]string{}}},
		{name: "refusals", config: configv1.Extender{FilterVerb: "filter"}, want: []string{"a"},
			response: extenderv1.ExtenderFilterResult{Nodes: nodeList("a"), FailedNodes: extenderv1.FailedNodesMap{"b": "full"}, FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{"c": "broken"}},
			refuse:   map[string]plugins.Refusal{"b": {Plugin: extenderName, Reasons: []string{"full"}}, "c": {Plugin: extenderName, Reasons: []string{"broken"}, Unresolvable: true}}},
		{name: "what cannot be resolved goes before what can", config: configv1.Extender{FilterVerb: "filter"}, want: []string{"a"},
			response: extenderv1.ExtenderFilterResult{Nodes: nodeList("a"), FailedNodes: extenderv1.FailedNodesMap{"b": "full"}, FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{"b": "broken"}},
			refuse:   map[string]plugins.Refusal{"b": {Plugin: extenderName, Reasons: []string{"broken"}, Unresolvable: true}}},
		{name: "an error", config: configv1.Extender{FilterVerb: "filter"}, response: extenderv1.ExtenderFilterResult{Nodes: nodeList("a"), Error: "out of order"}, fails: "out of order"},
		{name: "a code", config: configv1.Extender{FilterVerb: "filter"}, response: 500, fails: "failed filter with extender at URL URL/scheduler/filter, code 500"},
		{name: "another good code is none", config: configv1.Extender{FilterVerb: "filter"}, response: 202, fails: "code 202"},
		{name: "not JSON", config: configv1.Extender{FilterVerb: "filter"}, response: "hello", fails: "invalid character 'h'"},
		{name: "nothing", config: configv1.Extender{FilterVerb: "filter"}, response: "", fails: "EOF"},
		{name: "a node nobody asked about", config: configv1.Extender{FilterVerb: "filter", NodeCacheCapable: true}, response: extenderv1.ExtenderFilterResult{NodeNames: &[]string{"z"}}, fails: `extender "URL/scheduler" claims a filtered node "z" which is not found in the input node list`},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := newFakeExtender(t, map[string]any{"filter": test.response})
			kept, refusals, err := v.extender(test.config).filter(t.Context(), pod, nodes)
			if test.fails != "" {
				if want := strings.ReplaceAll(test.fails, "URL/", v.URL+"/"); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want %s", err, want)
				}
				return
			}
			var names []string
			for _, n := range kept {
				names = append(names, n.Name)
			}
			got := map[string]plugins.Refusal{}
			for name, r := range refusals {
				got[name] = *r
			}
			if err != nil || !slices.Equal(names, test.want) || len(got)+len(test.refuse) > 0 && !reflect.DeepEqual(got, test.refuse) {
				t.Errorf("kept %v, refused %v, %v; want %v, %v", names, got, err, test.want, test.refuse)
			}
			switch {
			case test.config.FilterVerb == "" && len(v.requests) > 0:
				t.Errorf("asked %v", v.requests)
			case test.config.FilterVerb != "" && !slices.Equal(v.requests, []string{"POST /scheduler/filter application/json"}):
				t.Errorf("asked %v", v.requests)
			case test.called != "" && (!strings.Contains(v.bodies[0], test.called) || !strings.Contains(v.bodies[0], `"Pod":{"metadata":{"name":"p","namespace":"default","uid":"p"}`)):
				t.Errorf("request %s\nwithout %s", v.bodies[0], test.called)
			}
		})
	}
}

func TestExtenderScores(t *testing.T) {
	nodes := []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}
	for _, test := range []struct {
		name     string
		config   configv1.Extender
		response any
		want     map[string]int64
		fails    string
	}{
		{name: "who has no verb says nothing"},
		{name: "0 to 10 becomes 0 to 100, times the weight", config: configv1.Extender{PrioritizeVerb: "prioritize", Weight: 3}, response: extenderv1.HostPriorityList{{Host: "a", Score: 10}, {Host: "b", Score: 1}}, want: map[string]int64{"a": 3000 / 10 * 1, "b": 30}},
		{name: "names are enough", config: configv1.Extender{PrioritizeVerb: "prioritize", Weight: 1, NodeCacheCapable: true}, response: extenderv1.HostPriorityList{{Host: "a", Score: 5}}, want: map[string]int64{"a": 50}},
		{name: "a code", config: configv1.Extender{PrioritizeVerb: "prioritize", Weight: 1}, response: 404, fails: "code 404"},
		{name: "no node is liked", config: configv1.Extender{PrioritizeVerb: "prioritize", Weight: 1}, response: extenderv1.HostPriorityList{}, want: map[string]int64{}},
		{name: "a node named twice has both", config: configv1.Extender{PrioritizeVerb: "prioritize", Weight: 2}, response: extenderv1.HostPriorityList{{Host: "a", Score: 3}, {Host: "a", Score: 4}}, want: map[string]int64{"a": 140}},
		{name: "a node may be disliked", config: configv1.Extender{PrioritizeVerb: "prioritize", Weight: 2}, response: extenderv1.HostPriorityList{{Host: "b", Score: -3}}, want: map[string]int64{"b": -60}},
		{name: "no weight, no say", config: configv1.Extender{PrioritizeVerb: "prioritize"}, response: extenderv1.HostPriorityList{{Host: "b", Score: 10}}, want: map[string]int64{"b": 0}},
		{name: "not a list", config: configv1.Extender{PrioritizeVerb: "prioritize", Weight: 1}, response: `{"Host":"a"}`, fails: "cannot unmarshal object"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := newFakeExtender(t, map[string]any{"prioritize": test.response})
			got, err := v.extender(test.config).scores(t.Context(), schedulertest.TestPod("p"), nodes)
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("error %v, want %s", err, test.fails)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("scores %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func TestExtenderPreempts(t *testing.T) {
	low, lower := schedulertest.TestPod("low", schedulertest.OnNode("a"), schedulertest.Priority(2)), schedulertest.TestPod("lower", schedulertest.OnNode("a"), schedulertest.Priority(1))
	other, spared := schedulertest.TestPod("other", schedulertest.OnNode("b")), schedulertest.TestPod("spared", schedulertest.OnNode("b"), schedulertest.Priority(7))
	pods := map[string][]*corev1.Pod{"a": {lower, low}, "b": {spared, other}, "c": {schedulertest.TestPod("third", schedulertest.OnNode("c"))}, "d": nil}
	candidates := []plugins.Preemption{{Node: "a", Victims: []*corev1.Pod{low, lower}, Violations: 1}, {Node: "b", Victims: []*corev1.Pod{other}}, {Node: "gone", Victims: []*corev1.Pod{schedulertest.TestPod("left")}}}
	meta := func(violations int64, uids ...string) *extenderv1.MetaVictims {
		m := &extenderv1.MetaVictims{NumPDBViolations: violations}
		for _, uid := range uids {
			m.Pods = append(m.Pods, &extenderv1.MetaPod{UID: uid})
		}
		return m
	}
	for _, test := range []struct {
		name     string
		config   configv1.Extender
		response map[string]*extenderv1.MetaVictims
		want     []string
		fails    string
		called   string
	}{
		{name: "everything stays", response: map[string]*extenderv1.MetaVictims{"a": meta(1, "low", "lower"), "b": meta(0, "other")}, want: []string{"a 1 [low lower]", "b 0 [other]"}, called: `"NodeNameToVictims":{"a":{"Pods":[{"metadata":{"name":"low"`},
		{name: "names are enough", config: configv1.Extender{NodeCacheCapable: true}, response: map[string]*extenderv1.MetaVictims{"b": meta(0, "other")}, want: []string{"b 0 [other]"},
			called: `"NodeNameToMetaVictims":{"a":{"Pods":[{"UID":"low"},{"UID":"lower"}],"NumPDBViolations":1},"b":{"Pods":[{"UID":"other"}],"NumPDBViolations":0},"gone":{"Pods":[{"UID":"left"}],"NumPDBViolations":0}}`},
		{name: "fewer victims, and another count", response: map[string]*extenderv1.MetaVictims{"a": meta(0, "lower")}, want: []string{"a 0 [lower]"}},
		{name: "the more important first, as always", response: map[string]*extenderv1.MetaVictims{"a": meta(0, "lower", "low")}, want: []string{"a 0 [low lower]"}},
		{name: "nothing stays", response: nil},
		{name: "a pod of the node that we would spare", response: map[string]*extenderv1.MetaVictims{"b": meta(2, "other", "spared")}, want: []string{"b 2 [spared other]"}},
		{name: "a node that we did not think of", response: map[string]*extenderv1.MetaVictims{"c": meta(0, "third")}, want: []string{"c 0 [third]"}},
		{name: "a node that is not there", response: map[string]*extenderv1.MetaVictims{"a": meta(0, "low"), "ghost": meta(0, "low")}, fails: `nodeinfo not found for node name "ghost"`},
		{name: "a node that is not there, by one that may be ignored", config: configv1.Extender{Ignorable: true}, response: map[string]*extenderv1.MetaVictims{"ghost": meta(0)}, fails: `nodeinfo not found for node name "ghost"`},
		{name: "a victim and a node that have gone meanwhile", response: map[string]*extenderv1.MetaVictims{"gone": meta(0, "left")}, want: []string{"gone 0 [left]"}},
		{name: "a pod of another node", response: map[string]*extenderv1.MetaVictims{"a": meta(0, "other")}, fails: "claims to preempt pod (UID: other) on node: a, but the pod is not found on that node"},
		{name: "a pod of an empty node", response: map[string]*extenderv1.MetaVictims{"d": meta(0, "low")}, fails: "on node: d, but"},
		{name: "victims that are not reported", response: map[string]*extenderv1.MetaVictims{"a": nil}, fails: `expected at least one victim pod on node "a"`},
		{name: "victims that are not reported, by one that may be ignored", config: configv1.Extender{Ignorable: true}, response: map[string]*extenderv1.MetaVictims{"a": nil, "b": meta(0, "other")}, want: []string{"b 0 [other]"}},
		{name: "a pod that is not there", response: map[string]*extenderv1.MetaVictims{"a": meta(0, "ghost")}, fails: "claims to preempt pod (UID: ghost) on node: a, but the pod is not found on that node"},
		{name: "no victims", response: map[string]*extenderv1.MetaVictims{"a": meta(0)}, fails: `expected at least one victim pod on node "a"`},
		{name: "no victims, by one that may be ignored", config: configv1.Extender{Ignorable: true}, response: map[string]*extenderv1.MetaVictims{"a": meta(0), "b": meta(0, "other")}, want: []string{"b 0 [other]"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := newFakeExtender(t, map[string]any{"preempt": extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: test.response}})
			test.config.PreemptVerb = "preempt"
			kept, err := v.extender(test.config).preempt(t.Context(), schedulertest.TestPod("p"), candidates, func(node string) ([]*corev1.Pod, bool) {
				all, known := pods[node]
				return all, known
			})
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("error %v, want %s", err, test.fails)
				}
				return
			}
			var got []string
			for _, way := range kept {
				var victims []string
				for _, p := range way.Victims {
					victims = append(victims, p.Name)
				}
				got = append(got, fmt.Sprint(way.Node, " ", way.Violations, " ", victims))
			}
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("kept %q, %v; want %q", got, err, test.want)
			}
			if !strings.Contains(v.bodies[0], test.called) {
				t.Errorf("request %s\nwithout %s", v.bodies[0], test.called)
			}
		})
	}
}

func TestExtenderBinds(t *testing.T) {
	for _, test := range []struct {
		name     string
		response any
		fails    string
	}{
		{"well", extenderv1.ExtenderBindingResult{}, ""}, {"not", extenderv1.ExtenderBindingResult{Error: "no resources"}, "no resources"}, {"not at all", 503, "failed bind with extender"},
	} {
		v := newFakeExtender(t, map[string]any{"bind": test.response})
		err := v.extender(configv1.Extender{BindVerb: "bind"}).bind(t.Context(), schedulertest.TestPod("p"), "a")
		if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %v, want %q", test.name, err, test.fails)
		}
		if want := `{"PodName":"p","PodNamespace":"default","PodUID":"p","Node":"a"}`; v.bodies[0] != want {
			t.Errorf("asked %s, want %s", v.bodies[0], want)
		}
	}
}

// An extender that manages resources is called for pods that request one of them, in any container.
func TestExtenderInterest(t *testing.T) {
	wants := func(list corev1.ResourceList) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list}}
	}
	theirs := corev1.ResourceList{"a.b/c": resource.MustParse("1")}
	for _, test := range []struct {
		name    string
		managed []string
		change  schedulertest.PodOption
		want    bool
	}{
		{"who manages nothing wants to know everything", nil, func(*corev1.Pod) {}, true},
		{"a pod that wants nothing", []string{"a.b/c"}, func(*corev1.Pod) {}, false},
		{"a request", []string{"a.b/c"}, func(p *corev1.Pod) { p.Spec.Containers[0] = wants(theirs) }, true},
		{"a request of the second container", []string{"a.b/c"}, func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, wants(theirs)) }, true},
		{"a limit", []string{"a.b/c"}, func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Limits = theirs }, true},
		{"an init container's", []string{"a.b/c"}, func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{wants(theirs)} }, true},
		{"an init container's limit", []string{"a.b/c"}, func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: theirs}}}
		}, true},
		{"one of several", []string{"x.y/z", "a.b/c"}, func(p *corev1.Pod) { p.Spec.Containers[0] = wants(theirs) }, true},
		{"another resource", []string{"x.y/z"}, func(p *corev1.Pod) { p.Spec.Containers[0] = wants(theirs) }, false},
		{"overhead is nobody's request", []string{"a.b/c"}, func(p *corev1.Pod) { p.Spec.Overhead = theirs }, false},
	} {
		var managed []configv1.ExtenderManagedResource
		for _, name := range test.managed {
			managed = append(managed, configv1.ExtenderManagedResource{Name: name})
		}
		e := &extender{config: &configv1.Extender{ManagedResources: managed}}
		if got := e.interested(schedulertest.TestPod("p", test.change)); got != test.want {
			t.Errorf("%s: interested %t, want %t", test.name, got, test.want)
		}
	}
}

// Extenders over TLS are known by the authority that is named, or are taken at their word where upstream takes them so.
func TestExtenderTLS(t *testing.T) {
	v := &fakeExtender{t: t, responses: map[string]any{"filter": extenderv1.ExtenderFilterResult{Nodes: nodeList("a")}}}
	var presented int
	v.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		presented = len(r.TLS.PeerCertificates)
		v.ServeHTTP(w, r)
	}))
	v.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	v.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	v.StartTLS()
	t.Cleanup(v.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: v.Certificate().Raw})
	keys, err := httptestKey(v)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name      string
		config    configv1.Extender
		fails     string
		presented int
	}{
		{name: "nobody is named", config: configv1.Extender{}, fails: "certificate signed by unknown authority"},
		{name: "HTTPS without an authority trusts everybody", config: configv1.Extender{EnableHTTPS: true}},
		{name: "an authority", config: configv1.Extender{EnableHTTPS: true, TLSConfig: &configv1.ExtenderTLSConfig{CAData: authority}}},
		{name: "an authority, whatever HTTPS says", config: configv1.Extender{TLSConfig: &configv1.ExtenderTLSConfig{CAData: authority}}},
		{name: "an authority and another name", config: configv1.Extender{EnableHTTPS: true, TLSConfig: &configv1.ExtenderTLSConfig{CAData: authority, ServerName: "other.test"}}, fails: "not other.test"},
		{name: "an authority and a name of its own", config: configv1.Extender{EnableHTTPS: true, TLSConfig: &configv1.ExtenderTLSConfig{CAData: authority, ServerName: "example.com"}}},
		{name: "insecure", config: configv1.Extender{TLSConfig: &configv1.ExtenderTLSConfig{Insecure: true}}},
		{name: "with a certificate", config: configv1.Extender{EnableHTTPS: true, TLSConfig: &configv1.ExtenderTLSConfig{CAData: authority, CertData: authority, KeyData: keys}}, presented: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			presented = 0
			test.config.FilterVerb = "filter"
			kept, _, err := v.extender(test.config).filter(t.Context(), schedulertest.TestPod("p"), []*corev1.Node{schedulertest.TestNode("a")})
			if test.fails != "" {
				if err == nil || !strings.Contains(err.Error(), test.fails) {
					t.Errorf("error %v, want %s", err, test.fails)
				}
				return
			}
			if err != nil || len(kept) != 1 || presented != test.presented {
				t.Errorf("kept %v, %v; %d certificates were shown, want %d", kept, err, presented, test.presented)
			}
		})
	}
	for plugin, config := range map[string]*configv1.ExtenderTLSConfig{
		"an authority of no certificates": {CAData: []byte("x")}, "a certificate without its key": {CertData: authority, KeyData: []byte("x")},
		"insecure, and yet an authority": {Insecure: true, CAData: authority},
	} {
		if _, err := newExtender(&configv1.Extender{EnableHTTPS: true, TLSConfig: config}); err == nil || !strings.HasPrefix(err.Error(), "tlsConfig: ") {
			t.Errorf("%s: %v", plugin, err)
		}
	}
}

func httptestKey(v *fakeExtender) ([]byte, error) {
	der, err := marshalKey(v.TLS.Certificates[0].PrivateKey)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// Whoever takes longer than their time is not waited for.
func TestExtenderTimeout(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(func() { close(release); server.Close() })
	config := configv1.Extender{URLPrefix: server.URL, FilterVerb: "filter"}
	config.HTTPTimeout.Duration = 20 * time.Millisecond
	e, err := newExtender(&config)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.filter(t.Context(), schedulertest.TestPod("p"), nil); err == nil || !strings.Contains(err.Error(), "Client.Timeout") {
		t.Errorf("waited until %v", err)
	}
	usual, err := newExtender(&configv1.Extender{})
	if err != nil || usual.client.Timeout != 5*time.Second {
		t.Errorf("usually waits %v, %v", usual.client.Timeout, err)
	}
}

// Those that may be ignored are called last, in their order; whatever slashes stand behind the prefix.
func TestExtendersInOrder(t *testing.T) {
	all, err := extendersOf(parsed(t, "extenders: [{urlPrefix: 'http://1', ignorable: true}, {urlPrefix: 'http://2'}, {urlPrefix: 'http://3', ignorable: true}, {urlPrefix: 'http://4'}]"))
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, e := range all {
		order = append(order, e.config.URLPrefix)
	}
	if want := []string{"http://2", "http://4", "http://1", "http://3"}; !slices.Equal(order, want) {
		t.Errorf("asked %v, want %v", order, want)
	}
	v := newFakeExtender(t, map[string]any{"filter": extenderv1.ExtenderFilterResult{}})
	e := v.extender(configv1.Extender{FilterVerb: "filter"})
	e.config.URLPrefix += "//"
	if _, _, err := e.filter(t.Context(), schedulertest.TestPod("p"), nil); err != nil || v.requests[0] != "POST /scheduler/filter application/json" {
		t.Errorf("asked %v, %v", v.requests, err)
	}
}

// Several extenders narrow the choice one after another, and every one that may be ignored is, when it fails.
func TestFilterByExtenders(t *testing.T) {
	names := func(all ...string) extenderv1.ExtenderFilterResult {
		return extenderv1.ExtenderFilterResult{NodeNames: &all}
	}
	for _, test := range []struct {
		name      string
		responses []any
		ignore    []bool
		want      []string
		refused   []string
		fails     string
		called    []int
	}{
		{"each sees what the one before has left", []any{names("a", "b"), names("b")}, []bool{false, false}, []string{"b"}, nil, "", []int{1, 1}},
		{"with nothing left nobody is called", []any{names(), names("b")}, []bool{false, false}, nil, nil, "", []int{1, 0}},
		{"a failure ends it", []any{500, names("b")}, []bool{false, false}, nil, nil, "code 500", []int{1, 0}},
		{"a failure that may be ignored is", []any{500, names("b")}, []bool{true, false}, []string{"b"}, nil, "", []int{1, 1}},
		{"refusals are gathered", []any{
			extenderv1.ExtenderFilterResult{NodeNames: &[]string{"a", "b"}, FailedNodes: extenderv1.FailedNodesMap{"c": "x"}},
			extenderv1.ExtenderFilterResult{NodeNames: &[]string{"b"}, FailedNodes: extenderv1.FailedNodesMap{"a": "y"}},
		}, []bool{false, false}, []string{"b"}, []string{"a", "c"}, "", []int{1, 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var all []*extender
			var fakes []*fakeExtender
			for i, response := range test.responses {
				v := newFakeExtender(t, map[string]any{"filter": response})
				fakes, all = append(fakes, v), append(all, v.extender(configv1.Extender{FilterVerb: "filter", NodeCacheCapable: true, Ignorable: test.ignore[i]}))
			}
			nodes, refusals, err := filterByExtenders(t.Context(), all, schedulertest.TestPod("p"), []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b"), schedulertest.TestNode("c")})
			if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Fatalf("error %v, want %q", err, test.fails)
			}
			var kept, refused []string
			for _, n := range nodes {
				kept = append(kept, n.Name)
			}
			for name := range refusals {
				refused = append(refused, name)
			}
			if slices.Sort(refused); !slices.Equal(kept, test.want) || !slices.Equal(refused, test.refused) {
				t.Errorf("kept %v, refused %v; want %v, %v", kept, refused, test.want, test.refused)
			}
			for i, v := range fakes {
				if len(v.requests) != test.called[i] {
					t.Errorf("extender %d was called %d times, want %d", i, len(v.requests), test.called[i])
				}
			}
		})
	}
}

// A scheduler with extenders on real HTTP: they narrow, weigh, bind and say why not.
func TestSchedulerWithExtenders(t *testing.T) {
	for _, test := range []struct {
		name      string
		fields    string // of the extender
		responses map[string]any
		pods      []*corev1.Pod
		node      map[string]string
		message   string // of the first pod's condition
		bound     int    // by the scheduler itself
	}{
		{name: "the only node left", fields: "filterVerb: filter, nodeCacheCapable: true", responses: map[string]any{"filter": extenderv1.ExtenderFilterResult{NodeNames: &[]string{"b"}}}, node: map[string]string{"p": "b"}, bound: 1},
		{name: "the node that is liked", fields: "prioritizeVerb: prioritize, weight: 100", responses: map[string]any{"prioritize": extenderv1.HostPriorityList{{Host: "c", Score: 10}}}, node: map[string]string{"p": "c"}, bound: 1},
		{name: "who cannot weigh is not heard", fields: "prioritizeVerb: prioritize, weight: 100", responses: map[string]any{"prioritize": 500}, node: map[string]string{"p": "*"}, bound: 1},
		{name: "no node left", fields: "filterVerb: filter", responses: map[string]any{"filter": extenderv1.ExtenderFilterResult{FailedNodes: extenderv1.FailedNodesMap{"a": "full", "b": "full"}, FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{"c": "broken"}}},
			node: map[string]string{"p": ""}, message: "0/3 nodes are available: 1 broken, 2 full."},
		{name: "an extender that fails", fields: "filterVerb: filter", responses: map[string]any{"filter": 500}, node: map[string]string{"p": ""}, message: "failed filter with extender at URL URL/scheduler/filter, code 500"},
		{name: "an extender that fails and may be ignored", fields: "filterVerb: filter, ignorable: true", responses: map[string]any{"filter": 500}, node: map[string]string{"p": "*"}, bound: 1},
		{name: "an extender that binds", fields: "bindVerb: bind", responses: map[string]any{"bind": extenderv1.ExtenderBindingResult{}}, node: map[string]string{"p": ""}, bound: 0},
		{name: "an extender that does not bind", fields: "bindVerb: bind", responses: map[string]any{"bind": extenderv1.ExtenderBindingResult{Error: "no"}}, node: map[string]string{"p": ""}, message: "no"},
		{name: "an extender that need not bind", fields: "bindVerb: bind, ignorable: true", responses: map[string]any{"bind": 500}, node: map[string]string{"p": "*"}, bound: 1},
		{name: "an extender of resources is called for pods that request them", fields: "filterVerb: filter, managedResources: [{name: a.b/c, ignoredByScheduler: true}]", responses: map[string]any{"filter": extenderv1.ExtenderFilterResult{Nodes: nodeList("b")}},
			pods: []*corev1.Pod{schedulertest.TestPod("p", schedulertest.Requesting("a.b/c", "1")), schedulertest.TestPod("plain", schedulertest.Selecting(corev1.LabelHostname, "c"))}, node: map[string]string{"p": "b", "plain": "c"}, bound: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := newFakeExtender(t, test.responses)
			c := parsed(t, "extenders: [{urlPrefix: '"+v.URL+"/scheduler', "+test.fields+"}]")
			pods := test.pods
			if pods == nil {
				pods = []*corev1.Pod{schedulertest.TestPod("p")}
			}
			f := newFakeServer(t, c)
			f.delay = time.Millisecond
			f.scheduler.nodeAdded(schedulertest.TestNode("a"))
			f.scheduler.nodeAdded(schedulertest.TestNode("b"))
			f.scheduler.nodeAdded(schedulertest.TestNode("c"))
			for _, p := range pods {
				f.mu.Lock()
				f.pods[p.Name], f.seen[p.Name] = p, p
				f.mu.Unlock()
				f.scheduler.locked(func() {
					f.scheduler.podAdded(p)
					next, _ := f.scheduler.queue.Pop(time.Now())
					f.scheduler.scheduleOne(t.Context(), next)
				})
				f.scheduler.writing.Wait()
			}
			for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
				wrong := ""
				for name, want := range test.node {
					if got := f.nodeOf(name); got != want && (want != "*" || got == "") {
						wrong = fmt.Sprintf("%s is on %q, want %q", name, got, want)
					}
				}
				if wrong == "" {
					break
				}
				if time.Now().After(end) {
					t.Fatal(wrong)
				}
			}
			bound := 0
			for _, p := range pods {
				bound += f.boundTimes(p.Name)
			}
			patches := strings.Join(f.patchesOf("p"), "")
			if bound != test.bound || !strings.Contains(patches, strings.ReplaceAll(test.message, " URL/", " "+v.URL+"/")) || (test.message == "") != (patches == "") {
				t.Errorf("bound %d, reported %s; want %d, %s", bound, patches, test.bound, test.message)
			}
		})
	}
}

// What extenders said last is checked against the cluster as it is by then.
func TestClusterChangesWhileExtendersAreCalled(t *testing.T) {
	f := newFakeServer(t, nil)
	s := f.scheduler
	s.nodeAdded(schedulertest.TestNode("a"))
	s.nodeAdded(schedulertest.TestNode("b"))
	d, err := decision.Schedule(s.snapshot, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("3"))), s.profiles[corev1.DefaultSchedulerName])
	if err != nil {
		t.Fatal(err)
	}
	a, b := s.snapshot.NodeInfos[0].Node, s.snapshot.NodeInfos[1].Node
	s.podAdded(schedulertest.TestPod("first", schedulertest.OnNode("a"), schedulertest.RequestingCPU("2")))
	if err := s.takeBest(d, []*corev1.Node{a, b}, map[string]int64{"a": 100, "b": 1}); err != nil || d.Node != "b" {
		t.Errorf("took %q, %v; the better node is full", d.Node, err)
	}
	s.nodeDeleted(b)
	if err := s.takeBest(d, []*corev1.Node{a, b}, map[string]int64{"a": 100, "b": 1}); err == nil || errors.As(err, new(*decision.FitError)) {
		t.Errorf("took %q, %v; nothing is left", d.Node, err)
	}
}

// Candidates for preemption are passed from extender to extender; the first that fails and is not ignorable ends it.
func TestExtendersReviewPreemption(t *testing.T) {
	victims := func(all ...string) extenderv1.ExtenderPreemptionResult { // "node pod"
		r := extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{}}
		for _, one := range all {
			node, pod, _ := strings.Cut(one, " ")
			if r.NodeNameToMetaVictims[node] == nil {
				r.NodeNameToMetaVictims[node] = &extenderv1.MetaVictims{}
			}
			r.NodeNameToMetaVictims[node].Pods = append(r.NodeNameToMetaVictims[node].Pods, &extenderv1.MetaPod{UID: pod})
		}
		return r
	}
	const verb = "preemptVerb: preempt"
	type said struct {
		fields   string
		response any
	}
	for _, test := range []struct {
		name          string
		extenders     []said
		node, message string // message without "preemption: "
		victims       string
		called        []int
	}{
		{"nobody is called", nil, "a", "found a potential placement for pod on node a, preempting 1 victims", "a0", nil},
		{"who has no verb is not asked", []said{{"filterVerb: filter", 500}}, "a", "found a potential placement for pod on node a, preempting 1 victims", "a0", []int{0}},
		{"the other node", []said{{verb, victims("b b0")}}, "b", "found a potential placement for pod on node b, preempting 1 victims", "b0", []int{1}},
		{"another victim, and one more", []said{{verb, victims("b b1", "b b0")}}, "b", "found a potential placement for pod on node b, preempting 2 victims", "b1 b0", []int{1}},
		{"the best of those left is ours to choose", []said{{verb, victims("a a1", "b b0")}}, "b", "found a potential placement for pod on node b, preempting 1 victims", "b0", []int{1}},
		{"nothing is left", []said{{verb, victims()}}, "", "no candidate node for preemption", "", []int{1}},
		{"with nothing left nobody else is called", []said{{verb, victims()}, {verb, victims("b b0")}}, "", "no candidate node for preemption", "", []int{1, 0}},
		{"one after another", []said{{verb, victims("a a0", "b b0")}, {verb, victims("b b1")}}, "b", "found a potential placement for pod on node b, preempting 1 victims", "b1", []int{1, 1}},
		{"a failure ends it", []said{{verb, 500}, {verb, victims("b b0")}}, "", "failed preempt with extender at URL URL0/scheduler/preempt, code 500", "", []int{1, 0}},
		{"a failure that may be ignored leaves what there was", []said{{verb, victims("b b0")}, {verb + ", ignorable: true", 500}}, "b", "found a potential placement for pod on node b, preempting 1 victims", "b0", []int{1, 1}},
		{"nonsense that may be ignored leaves what there was", []said{{verb + ", ignorable: true", victims("b ghost")}}, "a", "found a potential placement for pod on node a, preempting 1 victims", "a0", []int{1}},
		{"victims of one node, none of another, by one that may be ignored", []said{{verb + ", ignorable: true", extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{"a": {}, "b": {Pods: []*extenderv1.MetaPod{{UID: "b0"}}}}}}}, "b", "found a potential placement for pod on node b, preempting 1 victims", "b0", []int{1}},
		{"who manages other resources is not asked", []said{{verb + ", managedResources: [{name: a.b/c}]", 500}}, "a", "found a potential placement for pod on node a, preempting 1 victims", "a0", []int{0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var fakes []*fakeExtender
			var fields []string
			message := test.message
			for i, e := range test.extenders {
				v := newFakeExtender(t, map[string]any{"preempt": e.response})
				fakes, fields = append(fakes, v), append(fields, "{urlPrefix: '"+v.URL+"/scheduler', "+e.fields+"}")
				message = strings.ReplaceAll(message, fmt.Sprint("URL", i), v.URL)
			}
			s := newFakeServer(t, parsed(t, "extenders: ["+strings.Join(fields, ", ")+"]")).scheduler
			for _, node := range []string{"a", "b"} {
				s.nodeAdded(schedulertest.TestNode(node))
				s.podAdded(schedulertest.TestPod(node+"0", schedulertest.OnNode(node), schedulertest.RequestingCPU("2")))
				s.podAdded(schedulertest.TestPod(node+"1", schedulertest.OnNode(node), schedulertest.RequestingCPU("2"), schedulertest.Priority(1)))
			}
			d, err := decision.Schedule(s.snapshot, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("2"), schedulertest.Priority(9))), s.profiles[corev1.DefaultSchedulerName])
			if !decision.IsUnschedulable(err) {
				t.Fatal(err)
			}
			var best *plugins.Preemption
			var got string
			var helpful bool
			s.locked(func() {
				s.preempt(t.Context(), d, func(b *plugins.Preemption, message string, h bool) { best, got, helpful = b, message, h })
			})
			var node string
			var gone []string
			if best != nil {
				node = best.Node
				for _, p := range best.Victims {
					gone = append(gone, p.Name)
				}
			}
			if node != test.node || strings.Join(gone, " ") != test.victims || got != "preemption: "+message || !helpful {
				t.Errorf("%q, victims %v, %s, helpful %t\nwant %q, %s, %s", node, gone, got, helpful, test.node, test.victims, message)
			}
			for i, v := range fakes {
				if len(v.requests) != test.called[i] {
					t.Errorf("extender %d was called %v", i, v.requests)
				}
			}
		})
	}
}

// What several extenders say of nodes is added to what we say; who fails says nothing, whether it may be ignored or not.
func TestScoreByExtenders(t *testing.T) {
	for _, test := range []struct {
		name      string
		responses []any
		want      map[string]int64
	}{
		{"nobody", nil, map[string]int64{"a": 5, "b": 7}},
		{"one", []any{extenderv1.HostPriorityList{{Host: "a", Score: 1}}}, map[string]int64{"a": 15, "b": 7}},
		{"two", []any{extenderv1.HostPriorityList{{Host: "a", Score: 1}, {Host: "b", Score: 2}}, extenderv1.HostPriorityList{{Host: "a", Score: 10}}}, map[string]int64{"a": 115, "b": 27}},
		{"one of two fails", []any{500, extenderv1.HostPriorityList{{Host: "b", Score: 10}}}, map[string]int64{"a": 5, "b": 107}},
		{"the last fails", []any{extenderv1.HostPriorityList{{Host: "b", Score: 10}}, "nonsense"}, map[string]int64{"a": 5, "b": 107}},
	} {
		totals := map[string]int64{"a": 5, "b": 7}
		var all []*extender
		for _, response := range test.responses {
			all = append(all, newFakeExtender(t, map[string]any{"prioritize": response}).extender(configv1.Extender{PrioritizeVerb: "prioritize", Weight: 1}))
		}
		newFakeServer(t, nil).scheduler.scoreByExtenders(t.Context(), all, schedulertest.TestPod("p"), []*corev1.Node{schedulertest.TestNode("a"), schedulertest.TestNode("b")}, totals)
		if !reflect.DeepEqual(totals, test.want) {
			t.Errorf("%s: %v, want %v", test.name, totals, test.want)
		}
	}
}

// Every question is put in one of two forms, never in both; a scheduler that ends waits for no answer.
func TestExtenderRequests(t *testing.T) {
	pod, nodes := schedulertest.TestPod("p"), []*corev1.Node{schedulertest.TestNode("b"), schedulertest.TestNode("a", schedulertest.Cordoned)}
	candidates := []plugins.Preemption{{Node: "a", Victims: []*corev1.Pod{schedulertest.TestPod("v")}, Violations: 3}}
	none := func(string) ([]*corev1.Pod, bool) { return nil, false }
	for _, cached := range []bool{false, true} {
		v := newFakeExtender(t, map[string]any{"f": extenderv1.ExtenderFilterResult{}, "s": extenderv1.HostPriorityList{}, "e": extenderv1.ExtenderPreemptionResult{}, "b": extenderv1.ExtenderBindingResult{}})
		e := v.extender(configv1.Extender{FilterVerb: "f", PrioritizeVerb: "s", PreemptVerb: "e", BindVerb: "b", NodeCacheCapable: cached})
		ask := map[string]func(context.Context) error{
			"f": func(ctx context.Context) error { _, _, err := e.filter(ctx, pod, nodes); return err },
			"s": func(ctx context.Context) error { _, err := e.scores(ctx, pod, nodes); return err },
			"e": func(ctx context.Context) error { _, err := e.preempt(ctx, pod, candidates, none); return err },
			"b": func(ctx context.Context) error { return e.bind(ctx, pod, "a") },
		}
		ended, end := context.WithCancel(t.Context())
		end()
		for verb, question := range ask {
			if err := question(ended); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v after the end", verb, err)
			}
		}
		if len(v.requests) != 0 {
			t.Errorf("asked %v after the end", v.requests)
		}
		for _, verb := range []string{"f", "s"} {
			if err := ask[verb](t.Context()); err != nil {
				t.Fatal(err)
			}
			var got extenderv1.ExtenderArgs
			if err := json.Unmarshal([]byte(v.bodies[len(v.bodies)-1]), &got); err != nil {
				t.Fatal(err)
			}
			want := extenderv1.ExtenderArgs{Pod: pod, Nodes: &corev1.NodeList{Items: []corev1.Node{*nodes[0], *nodes[1]}}}
			if cached {
				want.Nodes, want.NodeNames = nil, &[]string{"b", "a"}
			}
			if !equality.Semantic.DeepEqual(got, want) {
				t.Errorf("%s, cached %t: %+v, want %+v", verb, cached, got, want)
			}
		}
		if err := ask["e"](t.Context()); err != nil {
			t.Fatal(err)
		}
		var got extenderv1.ExtenderPreemptionArgs
		if err := json.Unmarshal([]byte(v.bodies[len(v.bodies)-1]), &got); err != nil {
			t.Fatal(err)
		}
		want := extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToVictims: map[string]*extenderv1.Victims{"a": {Pods: candidates[0].Victims, NumPDBViolations: 3}}}
		if cached {
			want.NodeNameToVictims, want.NodeNameToMetaVictims = nil, map[string]*extenderv1.MetaVictims{"a": {Pods: []*extenderv1.MetaPod{{UID: "v"}}, NumPDBViolations: 3}}
		}
		if !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("cached %t: %+v, want %+v", cached, got, want)
		}
	}
}

func marshalKey(key any) ([]byte, error) { return x509.MarshalPKCS8PrivateKey(key) }
