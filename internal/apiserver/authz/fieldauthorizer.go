package authz

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/apiserver/authn"
	"skiff/internal/kind"
)

// FieldAuthorizer authorizes the fields of objects that need a permission of their own.
type FieldAuthorizer struct {
	Authorizer Authorizer
	// Objects gets the policy of a policy binding.
	Objects func(ctx context.Context, resource schema.GroupResource, name string) (kind.Object, error)
	// Resource is the resource of a kind; false if the kind is unknown.
	Resource func(schema.GroupVersionKind) (string, bool)
	// Forbidden makes the error of a request that is not allowed.
	Forbidden func(a *Attributes, reason string) error
}

// Check authorizes the write of a valid object. a is the request; old is nil on create.
func (f *FieldAuthorizer) Check(ctx context.Context, a *Attributes, obj, old kind.Object) field.ErrorList {
	switch obj := obj.(type) {
	case *certificatesv1.PodCertificateRequest:
		if a.Subresource == "status" {
			return f.signing(ctx, a, obj, old.(*certificatesv1.PodCertificateRequest))
		}
	case *resourcev1.ResourceClaim:
		if a.Subresource == "status" {
			return f.claimStatus(ctx, a, &obj.Status, &old.(*resourcev1.ResourceClaim).Status)
		}
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		return f.policy(ctx, a, obj.Spec.ParamKind, paramKindOf(old))
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		return f.policy(ctx, a, obj.Spec.ParamKind, paramKindOf(old))
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		before, _ := old.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
		if before != nil && equality.Semantic.DeepEqual(before.Spec.ParamRef, obj.Spec.ParamRef) && before.Spec.PolicyName == obj.Spec.PolicyName {
			return nil
		}
		return f.binding(ctx, a, obj.Spec.ParamRef, "validatingadmissionpolicies", obj.Spec.PolicyName)
	case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
		before, _ := old.(*admissionregistrationv1.MutatingAdmissionPolicyBinding)
		if before != nil && equality.Semantic.DeepEqual(before.Spec.ParamRef, obj.Spec.ParamRef) && before.Spec.PolicyName == obj.Spec.PolicyName {
			return nil
		}
		return f.binding(ctx, a, obj.Spec.ParamRef, "mutatingadmissionpolicies", obj.Spec.PolicyName)
	}
	return nil
}

// signing: the status of a PodCertificateRequest needs the verb sign on its signer.
func (f *FieldAuthorizer) signing(ctx context.Context, a *Attributes, obj, old *certificatesv1.PodCertificateRequest) field.ErrorList {
	signer := old.Spec.SignerName
	if equality.Semantic.DeepEqual(obj.Status, old.Status) || AuthorizedForSigner(ctx, f.Authorizer, a.User, "sign", signer) {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec", "signerName"), fmt.Sprintf("User %q is not permitted to \"sign\" for signer %q", a.User.Username, signer))}
}

// AuthorizedForSigner reports whether a user has the verb on a signer, or on all signers of its domain.
func AuthorizedForSigner(ctx context.Context, authorizer Authorizer, user authn.User, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		decision, _, err := authorizer.Authorize(ctx, &Attributes{
			User: user, Verb: verb, Name: name, ResourceRequest: true, Group: certificatesv1.GroupName, Version: "*", Resource: "signers",
		})
		if err == nil && decision == Allow {
			return true
		}
	}
	return false
}

// claimStatus: the allocation of a resource claim needs permission to bind claims, the status of its devices one for the driver.
func (f *FieldAuthorizer) claimStatus(ctx context.Context, a *Attributes, status, old *resourcev1.ResourceClaimStatus) (errs field.ErrorList) {
	if !equality.Semantic.DeepEqual(status.Allocation, old.Allocation) || !equality.Semantic.DeepEqual(status.ReservedFor, old.ReservedFor) {
		if err := f.authorizeSubresource(ctx, a, virtualSubresource{verb: a.Verb, subresource: resourcev1.SubresourceBinding}); err != nil {
			errs = append(errs, field.Forbidden(field.NewPath("status", "allocation"),
				fmt.Sprintf(`changing status.allocation or status.reservedFor requires resource="resourceclaims/binding", verb="%s" permission: %s`, a.Verb, err)))
		}
	}
	if status.Allocation == nil {
		return errs
	}
	verbs := []string{resourcev1.VerbPrefixArbitraryNode + a.Verb}
	if node := onlyNode(status.Allocation); node != "" && runsOn(a.User, node) {
		verbs = slices.Insert(verbs, 0, resourcev1.VerbPrefixAssociatedNode+a.Verb)
	}
	for _, driver := range changedDrivers(status.Devices, old.Devices) {
		var first error
		for _, verb := range verbs {
			err := f.authorizeSubresource(ctx, a, virtualSubresource{verb, resourcev1.SubresourceDriver, a.Namespace, driver})
			if err == nil {
				first = nil
				break
			}
			if first == nil {
				first = err
			}
		}
		if first != nil {
			errs = append(errs, field.Forbidden(field.NewPath("status", "devices"),
				fmt.Sprintf(`changing status.devices requires resource="resourceclaims/driver", verb="%s" permission: %s`, verbs, first)))
		}
	}
	return errs
}

type virtualSubresource struct{ verb, subresource, namespace, name string }

// authorizeSubresource authorizes a verb on a virtual subresource, which exists only in rules.
func (f *FieldAuthorizer) authorizeSubresource(ctx context.Context, a *Attributes, s virtualSubresource) error {
	attributes := *a
	attributes.Verb, attributes.Subresource, attributes.Namespace, attributes.Name = s.verb, s.subresource, s.namespace, s.name
	decision, reason, err := f.Authorizer.Authorize(ctx, &attributes)
	switch {
	case decision == Allow:
		return nil
	case err != nil && reason != "":
		reason = err.Error() + ": " + reason
	case err != nil:
		reason = err.Error()
	}
	return f.Forbidden(&attributes, reason)
}

// onlyNode is the node of an allocation for a single node, or "".
func onlyNode(allocation *resourcev1.AllocationResult) string {
	if allocation.NodeSelector == nil || len(allocation.NodeSelector.NodeSelectorTerms) != 1 {
		return ""
	}
	term := allocation.NodeSelector.NodeSelectorTerms[0]
	if len(term.MatchExpressions) != 0 || len(term.MatchFields) != 1 {
		return ""
	}
	if f := term.MatchFields[0]; f.Key == "metadata.name" && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
		return f.Values[0]
	}
	return ""
}

// runsOn reports whether the user is a service account whose pod runs on the node.
func runsOn(user authn.User, node string) bool {
	_, _, account := authn.SplitServiceAccountName(user.Username)
	on := user.Extra[authn.ExtraNodeName]
	return account && len(on) == 1 && on[0] == node
}

// changedDrivers are the drivers of added, removed and changed devices, sorted.
func changedDrivers(devices, old []resourcev1.AllocatedDeviceStatus) []string {
	type device struct{ driver, pool, name, share string }
	key := func(d *resourcev1.AllocatedDeviceStatus) device {
		k := device{d.Driver, d.Pool, d.Device, ""}
		if d.ShareID != nil {
			k.share = *d.ShareID
		}
		return k
	}
	before := map[device]*resourcev1.AllocatedDeviceStatus{}
	for i := range old {
		before[key(&old[i])] = &old[i]
	}
	var drivers []string
	for i := range devices {
		k := key(&devices[i])
		if previous := before[k]; previous == nil || !equality.Semantic.DeepEqual(previous, &devices[i]) {
			drivers = append(drivers, k.driver)
		}
		delete(before, k)
	}
	for removed := range before {
		drivers = append(drivers, removed.driver)
	}
	slices.Sort(drivers)
	return slices.Compact(drivers)
}

func paramKindOf(policy kind.Object) *admissionregistrationv1.ParamKind {
	if policy == nil || reflect.ValueOf(policy).IsNil() {
		return nil
	}
	switch policy := policy.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		return policy.Spec.ParamKind
	case *admissionregistrationv1.MutatingAdmissionPolicy:
		return policy.Spec.ParamKind
	}
	return nil
}

// policy: a policy gives its author access to its parameters, so the author must be able to read all of them.
func (f *FieldAuthorizer) policy(ctx context.Context, a *Attributes, param, old *admissionregistrationv1.ParamKind) field.ErrorList {
	if param == nil || old != nil && *old == *param || slices.Contains(a.User.Groups, authn.GroupMasters) {
		return nil
	}
	attributes, _, _ := f.paramAttributes(a.User, param)
	attributes.Verb, attributes.Name, attributes.Namespace = "get", "*", "*"
	decision, _, err := f.Authorizer.Authorize(ctx, attributes)
	if err == nil && decision != Allow {
		err = fmt.Errorf(`user %v must have "get" permission on all objects of the referenced paramKind (kind=%s, apiVersion=%s)`, describeUser(a.User), param.Kind, param.APIVersion)
	}
	if err != nil {
		return field.ErrorList{field.Forbidden(field.NewPath("spec", "paramKind"), err.Error())}
	}
	return nil
}

// paramAttributes are the attributes of a request for the parameters: with wildcards for what is unknown.
func (f *FieldAuthorizer) paramAttributes(user authn.User, param *admissionregistrationv1.ParamKind) (a *Attributes, parseErr, resolveErr error) {
	a = &Attributes{User: user, ResourceRequest: true, Group: "*", Version: "*", Resource: "*"}
	if param == nil {
		return a, nil, nil
	}
	gv, err := schema.ParseGroupVersion(param.APIVersion)
	if err != nil {
		return a, err, nil
	}
	a.Group, a.Version = gv.Group, gv.Version
	resource, ok := f.Resource(gv.WithKind(param.Kind))
	if !ok {
		return a, nil, errors.New("no such kind")
	}
	a.Resource = resource
	return a, nil, nil
}

// binding: a user who binds a policy to parameters must be able to read them.
func (f *FieldAuthorizer) binding(ctx context.Context, a *Attributes, ref *admissionregistrationv1.ParamRef, policies, name string) field.ErrorList {
	if ref == nil || slices.Contains(a.User.Groups, authn.GroupMasters) {
		return nil
	}
	var param *admissionregistrationv1.ParamKind
	policy, policyErr := f.Objects(ctx, admissionregistrationv1.Resource(policies), name)
	if policyErr == nil {
		param = paramKindOf(policy)
	}
	attributes, parseErr, resolveErr := f.paramAttributes(a.User, param)
	attributes.Verb, attributes.Name, attributes.Namespace = "get", ref.Name, ref.Namespace
	if ref.Name == "" {
		attributes.Verb = "list"
	}
	decision, _, err := f.Authorizer.Authorize(ctx, attributes)
	everything := fmt.Sprintf(`to determine minimum required permissions and user %v does not have "%v" permission for all groups, versions and resources`, describeUser(a.User), attributes.Verb)
	switch {
	case err != nil:
		err = fmt.Errorf("failed to authorize request: %w", err)
	case decision == Allow:
		return nil
	case policyErr != nil:
		err = fmt.Errorf("unable to get policy %s %s", name, everything)
	case parseErr != nil:
		err = fmt.Errorf("unable to parse paramKind %v %s", param, everything)
	case resolveErr != nil:
		err = fmt.Errorf("unable to resolve paramKind %v %s", param, everything)
	default:
		err = fmt.Errorf(`user %v does not have "%v" permission on the object referenced by paramRef`, describeUser(a.User), attributes.Verb)
	}
	return field.ErrorList{field.Forbidden(field.NewPath("spec", "paramRef"), err.Error())}
}

// describeUser formats a user as upstream's messages do.
func describeUser(u authn.User) string {
	extra := map[string][]string{}
	for key, values := range u.Extra {
		extra[key] = values
	}
	return fmt.Sprintf("&{%s %s %v %v}", u.Username, u.UID, u.Groups, extra)
}
