"""The addresses of the shop."""

from django.urls import path
from orders import views

urlpatterns = [
    path("orders/<int:number>/", views.order),
    path("async-orders/<int:number>/", views.order_in_a_coroutine),
    path("ready/", views.ready),
]
