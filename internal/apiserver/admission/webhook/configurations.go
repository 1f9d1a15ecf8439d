package webhook

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"skiff/internal/apiserver/admission"
	"skiff/internal/apiserver/admission/cel"
	"skiff/internal/apiserver/admission/match"
	"skiff/internal/kind"
	"skiff/internal/webhook"
)

// definition is a webhook of a configuration. Validating webhooks lack one of its fields.
type definition = admissionregistrationv1.MutatingWebhook

// hook is a compiled webhook.
type hook struct {
	name          string
	configuration string
	// uid identifies the webhook in a second run: names in a configuration are not unique.
	uid string

	matcher    *match.Matcher
	conditions *cel.Conditions // nil: none
	client     *webhook.Client
	// invalid is why the webhook cannot be called.
	invalid error

	failOpen bool
	// noSideEffects: it may be called for dry runs.
	noSideEffects  bool
	hasSideEffects bool // the field is set
	// reviewVersion is the version of the AdmissionReview; empty: it accepts none that is known.
	reviewVersion string
	timeout       time.Duration
	// reinvoke: it is called again if a later webhook changes the object.
	reinvoke bool
}

// candidate is a webhook at its position among all.
type candidate struct {
	*hook
	position int
}

// compiledConfigurations are a state of all configurations.
type compiledConfigurations struct {
	revision int64
	static   *manifests
	// index are all webhooks, those of files first; staticIndex are those of files.
	index, staticIndex *match.Index[*candidate]
	byName             map[string]*compiledConfiguration
}

// candidates are the webhooks that can be for a write. Only those of files are for configurations of webhooks and policies.
func (c *compiledConfigurations) candidates(a *admission.Attributes) []*candidate {
	if match.IsConfiguration(a) {
		return c.staticIndex.Candidates(a)
	}
	return c.index.Candidates(a)
}

type compiledConfiguration struct {
	version string
	hooks   []*hook
}

// configurations are the compiled configurations of one kind.
type configurations struct {
	options  *Options
	step     string
	resource schema.GroupResource
	parse    func(kind.Object) []definition

	// manifestsDir is the directory of configurations in files; empty: there are none.
	manifestsDir string
	static       atomic.Pointer[manifests]

	loader *admission.Loader[compiledConfigurations]
}

// newConfigurations returns the configurations of a kind, none of which is read yet.
func newConfigurations(o *Options, step string, resource schema.GroupResource, parse func(kind.Object) []definition) *configurations {
	c := &configurations{options: o, step: step, resource: resource, parse: parse}
	c.loader = admission.NewLoader(func(state *compiledConfigurations) bool {
		return state.revision == o.Objects().LastChange(resource) && state.static == c.static.Load()
	}, c.read)
	return c
}

// read compiles the configurations in the cache that have changed since last, which is nil for the first state.
func (c *configurations) read(last *compiledConfigurations) (*compiledConfigurations, error) {
	// A write after this is seen by the next call.
	next := &compiledConfigurations{revision: c.options.Objects().LastChange(c.resource), static: c.static.Load()}
	objs, err := c.options.Objects().List(c.resource, "", nil)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", c.resource.Resource, err)
	}
	c.compile(objs, next, last)
	return next, nil
}

// compile compiles the configurations, which are sorted by name, and closes the connections of webhooks that are gone. last is nil for the
// first state.
func (c *configurations) compile(objs []kind.Object, next, last *compiledConfigurations) {
	next.byName = make(map[string]*compiledConfiguration, len(objs))
	var candidates []*candidate
	add := func(key, version string, obj kind.Object) {
		var made *compiledConfiguration
		if last != nil {
			made = last.byName[key]
		}
		if made == nil || made.version != version {
			made = &compiledConfiguration{version: version, hooks: c.compileHooks(obj.GetName(), c.parse(obj))}
		}
		next.byName[key] = made
		for _, h := range made.hooks {
			candidates = append(candidates, &candidate{h, len(candidates)})
		}
	}
	if next.static != nil {
		for _, obj := range next.static.objects {
			add("manifest/"+obj.GetName(), next.static.hash, obj)
		}
	}
	matcher := func(h *candidate) *match.Matcher { return h.matcher }
	next.staticIndex = match.NewIndex(candidates, matcher)
	for _, obj := range objs {
		add(obj.GetName(), string(obj.GetUID())+"/"+obj.GetResourceVersion(), obj)
	}
	next.index = match.NewIndex(candidates, matcher)
	if last != nil {
		for key, old := range last.byName {
			if next.byName[key] != old {
				old.close()
			}
		}
	}
}

func (c *compiledConfiguration) close() {
	for _, h := range c.hooks {
		if h.client != nil {
			h.client.Close()
		}
	}
}

func (c *configurations) compileHooks(configuration string, definitions []definition) []*hook {
	hooks := make([]*hook, len(definitions))
	names := map[string]int{}
	for i := range definitions {
		hooks[i] = c.compileHook(&definitions[i])
		hooks[i].configuration = configuration
		name := definitions[i].Name
		hooks[i].uid = configuration + "/" + name + "/" + strconv.Itoa(names[name])
		names[name]++
	}
	return hooks
}

func (c *configurations) compileHook(d *definition) *hook {
	h := &hook{
		name: d.Name,
		matcher: match.Compile(match.Criteria{
			Rules: match.Rules(d.Rules), NamespaceSelector: d.NamespaceSelector, ObjectSelector: d.ObjectSelector, MatchPolicy: d.MatchPolicy,
		}),
		failOpen: ptr.Deref(d.FailurePolicy, admissionregistrationv1.Fail) == admissionregistrationv1.Ignore,
		timeout:  time.Duration(ptr.Deref(d.TimeoutSeconds, 10)) * time.Second,
		reinvoke: ptr.Deref(d.ReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy) == admissionregistrationv1.IfNeededReinvocationPolicy,
	}
	if d.SideEffects != nil {
		h.hasSideEffects = true
		h.noSideEffects = *d.SideEffects == admissionregistrationv1.SideEffectClassNone || *d.SideEffects == admissionregistrationv1.SideEffectClassNoneOnDryRun
	}
	for _, version := range d.AdmissionReviewVersions {
		if version == "v1" || version == "v1beta1" {
			h.reviewVersion = version
			break
		}
	}
	h.client, h.invalid = c.options.Clients.NewClient(webhook.AdmissionConfig(&d.ClientConfig), maxResponse)
	if len(d.MatchConditions) > 0 {
		owner := cel.Owner{Name: d.Name, Kind: "webhook", Type: "admit"}
		if c.step == stepValidating {
			owner.Type = "validate"
		}
		h.conditions = cel.CompileConditions(d.MatchConditions, false, owner, c.options.ConditionMetrics)
	}
	return h
}
