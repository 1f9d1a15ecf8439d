// Package policy has the controller that type-checks the expressions of ValidatingAdmissionPolicies against the schemas of the resources
// they are about, and writes what it finds to their status. The API server enforces policies whatever it finds.
package policy

import (
	"context"
	"encoding/json"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/client-go/discovery"

	"skiff/internal/client"
	"skiff/internal/controller"
)

// fieldManager owns the status.
const fieldManager = "validatingadmissionpolicy-status"

// ValidatingStatus writes the status of ValidatingAdmissionPolicies, once for each generation.
var ValidatingStatus = controller.Definition{
	Name: "validatingadmissionpolicy-status-controller", Queue: fieldManager, Workers: 5,
	New: func(s *controller.Setup) (controller.Syncer, error) {
		discoveryClient, err := discovery.NewDiscoveryClientForConfig(s.Client.Config)
		if err != nil {
			return nil, fmt.Errorf("create discovery client: %w", err)
		}
		policies := client.InformerFor[*admissionregistrationv1.ValidatingAdmissionPolicy](s.Informers)
		err = controller.Watch(s, func(policy *admissionregistrationv1.ValidatingAdmissionPolicy) []controller.Key {
			if policy.Generation <= policy.Status.ObservedGeneration {
				return nil
			}
			return []controller.Key{controller.KeyOf(policy)}
		})
		if err != nil {
			return nil, err
		}
		checker := &typeChecker{discovery: discoveryClient, log: s.Log}
		return controller.SyncFunc(func(ctx context.Context, key controller.Key) error {
			policy, ok := policies.Get("", key.Name)
			if !ok || policy.Generation <= policy.Status.ObservedGeneration {
				return nil
			}
			warnings, err := checker.check(policy)
			if err != nil {
				return err
			}
			written, err := client.For[*admissionregistrationv1.ValidatingAdmissionPolicy](s.Client).Patch(ctx, "", policy.Name,
				client.RawPatch(client.ApplyPatch, applyStatus(policy, warnings)),
				client.WriteOptions{Subresource: "status", FieldManager: fieldManager, Force: true})
			if err != nil {
				return fmt.Errorf("apply status: %w", err)
			}
			s.RecordWrite(key, written)
			return nil
		}), nil
	},
}

// applyStatus is an apply configuration with the status only.
func applyStatus(policy *admissionregistrationv1.ValidatingAdmissionPolicy, warnings []admissionregistrationv1.ExpressionWarning) []byte {
	data, err := json.Marshal(map[string]any{
		"apiVersion": admissionregistrationv1.SchemeGroupVersion.String(), "kind": "ValidatingAdmissionPolicy",
		"metadata": map[string]any{"name": policy.Name},
		"status": map[string]any{
			"observedGeneration": policy.Generation,
			"typeChecking":       admissionregistrationv1.TypeChecking{ExpressionWarnings: warnings},
		},
	})
	if err != nil {
		panic(err)
	}
	return data
}
