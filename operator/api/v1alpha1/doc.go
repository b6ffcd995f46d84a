// Package v1alpha1 has the types of the API group trainmaster.io. The rules of its fields are in the markers of the types, from which the
// CustomResourceDefinition is generated: the API server enforces them.
//
// +kubebuilder:object:generate=true
// +groupName=trainmaster.io
package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// GroupVersion is the version of the API in this package.
var GroupVersion = schema.GroupVersion{Group: "trainmaster.io", Version: "v1alpha1"}

// AddToScheme adds the types to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &TrainingJob{}, &TrainingJobList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
